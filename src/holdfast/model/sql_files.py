"""Named queries from .sql files: each begins with a line `-- name: some_name`."""

from __future__ import annotations

import re
from importlib.resources import files
from typing import LiteralString

_NAMED = re.compile(r"^-- name: (\w+)\n(.*?)(?=^-- name: |\Z)", re.MULTILINE | re.DOTALL)


def load_queries(package: str, path: str) -> dict[str, LiteralString]:
    """Return the queries of one .sql file in a package, or of all files in a folder of it, by name, without
    comments. Raises `ValueError` where a name is defined twice."""
    found = files(package).joinpath(path)
    queries: dict[str, LiteralString] = {}
    for file in sorted(found.iterdir(), key=lambda each: each.name) if found.is_dir() else [found]:
        for name, text in _NAMED.findall(file.read_text()):
            if name in queries:
                raise ValueError(f"query {name!r} is defined twice")
            lines = [line for line in text.splitlines() if not line.lstrip().startswith("--")]
            queries[name] = "\n".join(lines).strip().rstrip(";")
    return queries
