"""The crash rig: breaks everything on purpose, and checks what is left."""

from __future__ import annotations

from typing import NamedTuple


class Violation(NamedTuple):
    """A broken invariant, by its name in the list, and what broke it."""

    invariant: str
    message: str
