"""Positions as the tables have them: three numbers. All zeros is before every event: no position."""

from __future__ import annotations

from holdfast.model.position import format_position, parse_position

BEFORE_ALL = (0, 0, 0)
AFTER_ALL = (2**31 - 1, 2**63 - 1, 2**63 - 1)


def numbers(position: str | None) -> tuple[int, ...]:
    """The numbers of a position of this store."""
    return BEFORE_ALL if position is None else parse_position(position, 2)


def position(epoch: int | None, tx: int | None, seq: int | None) -> str | None:
    """The text of such numbers; None where there is none."""
    return format_position(epoch, tx or 0, seq or 0) if epoch else None


def following(position: str | None) -> dict[str, int]:
    """Parameters for a statement that goes on after a position."""
    return dict(zip(("epoch", "tx", "seq"), numbers(position), strict=True))


def up_to(position: str | None) -> dict[str, int]:
    """Parameters for a statement that ends with a position; None: the end of the log."""
    end = AFTER_ALL if position is None else numbers(position)
    return dict(zip(("until_epoch", "until_tx", "until_seq"), end, strict=True))
