"""Ask the package index whether every locked version has a wheel for each Python and platform of ours.

Part of `make lock`, which installs uv. `tests/unit/test_lock.py` checks the rest without a network.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from itertools import product
from pathlib import Path

REQUIREMENTS = sorted((Path(__file__).parent.parent / "requirements").glob("*.txt"))
PYTHONS = ("3.11.0", "3.11.2", "3.12.0", "3.13.0", "3.14.0")
PLATFORMS = {  # the names that uv has for them: what `sys.platform` and `platform.machine()` say there
    "x86_64-unknown-linux-gnu": ("linux", "x86_64"),
    "aarch64-unknown-linux-gnu": ("linux", "aarch64"),
    "x86_64-apple-darwin": ("darwin", "x86_64"),
    "aarch64-apple-darwin": ("darwin", "arm64"),
}


def missing(file: Path, python: str, platform: str, flags: list[str]) -> str:
    """What uv says where it finds no wheel; empty where all are there."""
    uv = shutil.which("uv", path=str(Path(sys.executable).parent)) or "uv"
    where = ["--python-version", python, "--python-platform", platform]
    done = subprocess.run(
        [uv, "pip", "compile", "--quiet", "--no-deps", *flags, *where, file], capture_output=True, text=True
    )
    return done.stderr if done.returncode else ""


if __name__ == "__main__":
    lacking = False
    for file, python, platform in product(REQUIREMENTS, PYTHONS, PLATFORMS):
        if message := missing(file, python, platform, sys.argv[1:]):
            print(f"{file.name}, Python {python}, {platform}:\n{message}", file=sys.stderr)  # noqa: T201
            lacking = True
    sys.exit(lacking)
