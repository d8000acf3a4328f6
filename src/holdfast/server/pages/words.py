"""Words: figures as people read them."""

from __future__ import annotations

import re
from datetime import datetime, timedelta

# What a browser does not show, or obeys: controls, marks that turn the direction, zero widths.
_HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]"
)
_UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))


def count(value: float) -> str:
    """1,234 as it is, 12,345 as 12.3k, and so on."""
    for limit, letter in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= limit:
            return f"{value / (1e3 if letter == 'k' else limit):.1f}{letter}"
    return f"{value:,.0f}"


def number(value: float) -> str:
    """Every digit."""
    return f"{value:,.0f}"


def some(value: int, exact: bool = True) -> str:
    """How many dead letters: "1 dead letter", "at least 10,000 dead letters"."""
    return f"{'' if exact else 'at least '}{value:,} dead letter{'' if value == 1 else 's'}"


def visible(value: object) -> object:
    """Text with what nobody can see written out, as JSON writes it: a page must not lie about its content."""
    if type(value) is not str:
        return value
    return _HIDDEN.sub(lambda found: f"\\u{ord(found[0]):04x}", value)


def rate(value: float) -> str:
    """Per second; small ones with a decimal."""
    return f"{value:.1f}" if 0 < value < 9.95 else count(value)


def size(value: float) -> str:
    """Bytes."""
    for limit, unit in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if value >= limit:
            return f"{value / limit:.1f} {unit}"
    return f"{value:.0f} B"


def span(seconds: float) -> str:
    """How long, in its largest unit."""
    for length, unit in _UNITS:
        if seconds >= length:
            return f"{seconds / length:.0f} {unit}"
    return "0 s"


def ago(then: datetime | None, now: datetime | None) -> str:
    """How long ago."""
    if then is None or now is None:
        return "–"
    return span(max(now - then, timedelta(0)).total_seconds())


def moment(then: datetime | None) -> str:
    """A time in UTC, to the second."""
    return "–" if then is None else f"{then:%Y-%m-%d %H:%M:%S}"
