"""Failures of a query in our own words: Spark wraps an error of ours into pages of text."""

from __future__ import annotations

import re

from holdfast.model import errors
from holdfast.model.errors import HoldfastError

_OURS = re.compile(r"holdfast\.[a-z_.]+\.([A-Z]\w+): (.*)")
_OTHER = re.compile(r"^(?:: |Caused by: )?(?:\w+\.)*(\w+(?:Error|Exception)): (.*)$", re.MULTILINE)


def explained(error: BaseException | None) -> HoldfastError:
    """The error of ours that is the cause, as far as its text tells."""
    if isinstance(error, HoldfastError):
        return error
    text = str(error)
    if found := _OURS.findall(text):
        name, message = found[-1]
        kind = getattr(errors, name, HoldfastError)
        plain = isinstance(kind, type) and issubclass(kind, HoldfastError) and "__init__" not in vars(kind)
        return kind(message) if plain else HoldfastError(f"{name}: {message}")
    if other := _OTHER.search(text):
        return HoldfastError(f"the Spark query failed: {other[1]}: {other[2]}")
    return HoldfastError(
        f"the Spark query failed: {text.strip().partition(chr(10))[0] or 'it ended by itself'}"
    )
