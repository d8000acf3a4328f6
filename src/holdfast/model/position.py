"""Positions: where an event stands in its channel, as opaque text that sorts as text.

The first field is the store's epoch. It rises when a store is restored or replaced, so a cursor from an
earlier life sorts before everything written since and can never skip into it.
"""

from __future__ import annotations

import re

from holdfast.model.errors import InvalidInput

_LARGEST = 2**63 - 1
_POSITION = re.compile(r"[0-9a-f]{4}(-[0-9a-f]{16})+")


def format_position(epoch: int, *fields: int) -> str:
    """Return fixed-width hexadecimal fields, so that the text sorts as the numbers do."""
    return f"{epoch:04x}-" + "-".join([f"{field:016x}" for field in fields])


def parse_position(text: str, fields: int) -> tuple[int, ...]:
    """Return the epoch and the `fields` numbers of a position that a backend of the same kind wrote."""
    if not _POSITION.fullmatch(text) or text.count("-") != fields:
        raise InvalidInput(
            f"{text!r} is not a position of this store; use one that a receipt or a log entry gave you"
        )
    numbers = tuple(int(field, 16) for field in text.split("-"))
    if max(numbers) > _LARGEST:
        raise InvalidInput(f"position {text!r} is beyond what any store can hold")
    return numbers
