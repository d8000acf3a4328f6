"""Say what this machine lacks before anything is installed: one line, with what to do.

Python 3.6 must be able to run this file: an old Python is among the things that it reports.
"""

import os
import platform
import shutil
import sys

OLDEST, NEWEST = (3, 11), (3, 14)  # as `requires-python` in pyproject.toml
MACHINES = {"linux": ("x86_64", "aarch64"), "darwin": ("x86_64", "arm64")}
GLIBC, MACOS = (2, 28), (13,)
NEEDED = 3  # GB: .venv has 2, and pip unpacks Spark beside it


def lack(folder: str) -> "str | None":
    """What keeps `make setup` from filling the virtual environment `folder`; None where nothing does."""
    major, minor = sys.version_info[:2]
    if not OLDEST <= (major, minor) <= NEWEST:
        return (
            f"Python 3.{OLDEST[1]} to 3.{NEWEST[1]} is needed, and {sys.executable} is {major}.{minor}: "
            f"name another one, make PYTHON=python3.{OLDEST[1]} ..."
        )
    if platform.machine() not in MACHINES.get(sys.platform, ()):
        return f"no wheels for {sys.platform} on {platform.machine()}: take Linux or macOS on x86-64 or ARM64"
    if sys.platform == "linux":
        library, release = platform.libc_ver()
        if library != "glibc" or _numbers(release) < GLIBC:
            return (
                f"no wheels for a Linux with {library or 'no glibc'} {release}: glibc 2.28 or newer is needed"
            )
    elif _numbers(platform.mac_ver()[0]) < MACOS:
        return f"no wheels for macOS {platform.mac_ver()[0]}: 13 or newer is needed"
    try:
        import ensurepip  # noqa: F401
        import venv  # noqa: F401
    except ImportError as error:
        return (
            f"{sys.executable} has no module {error.name}: on Debian and Ubuntu, apt-get install python3-venv"
        )
    return None if os.path.isdir(folder) else _lack_of_room(os.path.dirname(os.path.abspath(folder)))


def _numbers(release: str) -> "tuple[int, ...]":
    return tuple(int(part) for part in release.split(".") if part.isdigit())


def _lack_of_room(parent: str) -> "str | None":
    if not os.access(parent, os.W_OK):
        return f"{parent} is missing or read-only: clone into a folder of your own, or make VENV=... ..."
    free = shutil.disk_usage(parent).free / 2**30
    if free < NEEDED:
        return f"{parent} has {free:.1f} GB free, and {NEEDED} are needed: make VENV=... puts it elsewhere"
    return None


if __name__ == "__main__":
    sys.exit(lack(sys.argv[1]))
