"""The wheels that bring the servers: where their programs lie, without importing them."""

import shutil
from importlib import metadata, util
from pathlib import Path


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
