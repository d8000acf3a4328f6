"""Scripts: the .lua files beside this module, each with the shared parts that its first line names."""

from __future__ import annotations

import hashlib
from importlib.resources import files
from typing import NamedTuple

_USES = "-- uses:"


class Script(NamedTuple):
    """A script as the server gets it, and the name under which the server remembers it."""

    name: str
    text: str
    sha: str


def _without_comments(text: str) -> str:
    """The server need not carry our prose."""
    return "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("--"))


def _load() -> dict[str, Script]:
    folder = files(__package__).joinpath("lua")
    scripts = {}
    for file in folder.iterdir():
        if not file.name.endswith(".lua"):
            continue
        text = file.read_text()
        first = text.partition("\n")[0]
        if not first.startswith(_USES):
            raise ValueError(f"{file.name} does not begin with {_USES!r}")
        parts = [folder.joinpath("shared", f"{name}.lua").read_text() for name in first[len(_USES) :].split()]
        whole = "\n".join(map(_without_comments, (*parts, text)))
        name = file.name.removesuffix(".lua")
        scripts[name] = Script(name, whole, hashlib.sha1(whole.encode(), usedforsecurity=False).hexdigest())
    return scripts


SCRIPTS = _load()
