"""The bundle: this package as a zip file, for executors that do not have it installed.

    python -m holdfast.pipeline.bundle holdfast.zip
    spark-submit --py-files holdfast.zip app.py

It brings Holdfast's own code. What that imports (pyarrow, the clients of the stores) has compiled parts and
belongs into the executors' Python environment.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile

PACKAGES = ("holdfast", "pyspark_holdfast")


def build(path: Path) -> Path:
    """Write the bundle to `path`, which ends in `.zip`."""
    with ZipFile(path, "w", ZIP_DEFLATED) as archive:
        for package in PACKAGES:
            for name, file in _walk(package, files(package)):
                archive.writestr(name, file.read_bytes())
    return path


def _walk(name: str, folder: Traversable) -> Iterator[tuple[str, Traversable]]:
    for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
        if entry.is_file():
            yield f"{name}/{entry.name}", entry
        elif entry.name != "__pycache__":
            yield from _walk(f"{name}/{entry.name}", entry)


def main(arguments: list[str]) -> None:
    """Write the bundle to the path that is given."""
    if len(arguments) != 1 or not arguments[0].endswith(".zip"):
        sys.exit("usage: python -m holdfast.pipeline.bundle FILE.zip")
    build(Path(arguments[0]))


if __name__ == "__main__":
    main(sys.argv[1:])
