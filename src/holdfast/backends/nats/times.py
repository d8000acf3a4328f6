"""Times: microseconds since 1970 as the records keep them, and the server's own text."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_LATEST = (datetime(9999, 12, 31, tzinfo=UTC) - _EPOCH) // _MICROSECOND


def to_micros(value: datetime | timedelta) -> int:
    """Microseconds since 1970, or of a duration."""
    return (value - _EPOCH if isinstance(value, datetime) else value) // _MICROSECOND


def from_micros(value: int) -> datetime:
    """The time of so many microseconds since 1970, cut at the last year that a datetime can hold."""
    return _EPOCH + timedelta(microseconds=min(value, _LATEST))


def parse_stamp(text: str) -> int:
    """The server's RFC 3339 text, which has up to nine digits after the second, in microseconds."""
    whole, _, fraction = text.rstrip("Z").partition(".")
    seconds = datetime.fromisoformat(f"{whole}+00:00")
    return to_micros(seconds) + int(fraction[:6].ljust(6, "0") or 0)


def format_stamp(micros: int) -> str:
    """A time as the server reads it."""
    return from_micros(max(micros, 0)).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
