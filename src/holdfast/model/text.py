"""Text: what every store can hold."""

from __future__ import annotations

import re

from holdfast.model.errors import InvalidInput

_UNFIT = re.compile("[\x00\ud800-\udfff]")


def check_stored(what: str, *texts: str) -> None:
    """Refuse NUL, which PostgreSQL cannot hold, and lone surrogates, which have no bytes at all."""
    for text in texts:
        if _UNFIT.search(text):
            raise InvalidInput(f"{what} {text[:200]!r} holds NUL or half a character; remove it")
