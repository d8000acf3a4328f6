"""Durations as people write them: ``30s``, ``1h30m``, ``7d``, ``250ms``."""

from __future__ import annotations

import re
from datetime import timedelta

from holdfast.model.errors import Duration, InvalidInput

type_error = "a duration is text like '30s', '1h30m' or '7d', a number of seconds, or a timedelta"

LONGEST = timedelta(days=36_500)

_UNITS = {
    "ms": timedelta(milliseconds=1),
    "s": timedelta(seconds=1),
    "m": timedelta(minutes=1),
    "h": timedelta(hours=1),
    "d": timedelta(days=1),
    "w": timedelta(weeks=1),
}
_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h|d|w)")
DURATION = rf"({_PART.pattern})+"
"""How a duration is written, as a regular expression."""
_WHOLE = re.compile(DURATION)


def parse_duration(value: Duration, *, what: str = "duration") -> timedelta:
    """Return what a caller or a config file wrote as a timedelta. Raises `InvalidInput` for anything else."""
    try:
        parsed = _parse(value)
    except OverflowError:
        parsed = timedelta.min if isinstance(value, int | float) and value < 0 else timedelta.max
    if parsed < timedelta(0):
        raise InvalidInput(f"{what} {_shown(value)} is negative; use zero or more")
    if parsed > LONGEST:
        raise InvalidInput(f"{what} {_shown(value)} is too long; use at most {LONGEST.days}d")
    return parsed


def _parse(value: Duration) -> timedelta:
    if isinstance(value, timedelta):
        return value
    if isinstance(value, int | float) and not isinstance(value, bool):
        if value != value:  # NaN compares unequal to itself
            raise InvalidInput(f"{value!r} is not a duration: {type_error}")
        return timedelta(seconds=value)
    if isinstance(value, str) and _WHOLE.fullmatch(value.strip()):
        parts = _PART.findall(value)
        return sum((float(number) * _UNITS[unit] for number, unit in parts), timedelta(0))
    raise InvalidInput(f"{value!r} is not a duration: {type_error}")


def _shown(value: Duration) -> str:
    try:
        return repr(value)
    except ValueError:  # Python prints no integer of more than 4300 digits
        return "of thousands of digits"


def format_duration(value: timedelta) -> str:
    """Return the shortest text that `parse_duration` reads back as the same value."""
    milliseconds = value // timedelta(milliseconds=1)
    if value % timedelta(milliseconds=1):
        return f"{value.total_seconds():.6f}".rstrip("0") + "s"
    text = ""
    for unit in ("d", "h", "m", "s", "ms"):
        count, milliseconds = divmod(milliseconds, _UNITS[unit] // timedelta(milliseconds=1))
        text += f"{count}{unit}" if count else ""
    return text or "0s"
