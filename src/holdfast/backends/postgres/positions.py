"""Positions as the tables have them: two numbers. All zeros is before every event: no position."""

from __future__ import annotations

from holdfast.model.position import format_position, parse_position

Place = tuple[int, ...]
"""The epoch, and the number of an event."""
BEFORE_ALL: Place = (0, 0)
AFTER_ALL: Place = (2**31 - 1, 2**63 - 1)


def numbers(position: str | None) -> Place:
    """The numbers of a position of this store."""
    return BEFORE_ALL if position is None else parse_position(position, 1)


def position(epoch: int | None, seq: int | None) -> str | None:
    """The text of such numbers; None where there is none."""
    return format_position(epoch, seq or 0) if epoch else None


def following(position: str | None) -> dict[str, int]:
    """Parameters for a statement that goes on after a position."""
    return dict(zip(("epoch", "seq"), numbers(position), strict=True))


def up_to(end: Place) -> dict[str, int]:
    """Parameters for a statement that ends with a place."""
    return dict(zip(("until_epoch", "until_seq"), end, strict=True))
