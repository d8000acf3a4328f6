"""Named queries from .sql files."""

from __future__ import annotations

import re
from importlib.resources import files

_NAMED = re.compile(r"^-- name: (\w+)\n(.*?)(?=^-- name: |\Z)", re.MULTILINE | re.DOTALL)


def load_queries(file: str, package: str = __package__) -> dict[str, str]:
    """The queries of one file, by name, without their comments."""
    text = files(package).joinpath(file).read_text()
    return {
        name: "\n".join(line for line in body.splitlines() if not line.startswith("--")).strip()
        for name, body in _NAMED.findall(text)
    }
