"""Named queries from the .sql files beside this module."""

from __future__ import annotations

import re
from importlib.resources import files
from typing import LiteralString

_NAMED = re.compile(r"^-- name: (\w+)\n(.*?)(?=^-- name: |\Z)", re.MULTILINE | re.DOTALL)


def _load() -> dict[str, LiteralString]:
    queries: dict[str, LiteralString] = {}
    for file in sorted(files(__package__).joinpath("sql").iterdir(), key=lambda f: f.name):
        for name, text in _NAMED.findall(file.read_text()):
            if name in queries:
                raise ValueError(f"query {name!r} is defined twice")
            lines = [line for line in text.splitlines() if not line.lstrip().startswith("--")]
            queries[name] = "\n".join(lines).strip().rstrip(";")
    return queries


QUERIES = _load()
