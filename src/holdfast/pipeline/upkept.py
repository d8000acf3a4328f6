"""What a step of upkeep did."""

from __future__ import annotations

from typing import NamedTuple


class Upkept(NamedTuple):
    """In files or objects."""

    merged: int = 0
    into: int = 0
    indexed: int = 0
    removed: int = 0

    def plus(self, other: Upkept) -> Upkept:
        """Both together."""
        return Upkept(*(one + two for one, two in zip(self, other, strict=True)))
