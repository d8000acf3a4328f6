"""Formatting: figures, times, payloads and sparklines as people read them."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple

import orjson

from holdfast.model.gc_pause import gc_disabled

# What a browser does not show, or obeys: controls, marks that turn the direction, zero widths.
_HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]"
)
_UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))
WIDTH, HEIGHT, MOST = 120, 28, 60
SHOWN = 64 << 10
INDENTED = 256 << 10
"""What is larger is shown as it is: to indent it would hold up everybody."""
_BYTES = 4 << 10
_ROW = 16


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


class Sparkline(NamedTuple):
    """A line, the area below it, and its top value."""

    line: str
    area: str
    top: float


def sparkline(values: Sequence[float], width: int = WIDTH, height: int = HEIGHT) -> Sparkline | None:
    """The last values from left to right, scaled from zero to the largest; None where there are none yet."""
    shown = values[-MOST:]
    if len(shown) < 2:
        return None
    top = max(shown)
    step, scale = width / (len(shown) - 1), (height - 3) / (top or 1)
    points = [f"{index * step:.1f},{height - 1.5 - value * scale:.1f}" for index, value in enumerate(shown)]
    return Sparkline(" ".join(points), f"0,{height} {' '.join(points)} {width},{height}", top)


@dataclass(frozen=True, slots=True)
class Payload:
    """Some data as text."""

    text: str
    form: str
    """What it is: JSON, text or bytes."""
    size: int
    cut: bool
    """Whether only its beginning is shown."""


def payload(data: bytes, whole: bool = False) -> Payload:
    """JSON indented, other text as it is, bytes in hexadecimal; large ones cut unless all is wanted."""
    form, text = _text(data, whole)
    most = len(text) if whole else SHOWN
    return Payload(text[:most], form, len(data), len(text) > most or (form == "bytes" and len(data) > _BYTES))


def _text(data: bytes, whole: bool) -> tuple[str, str]:
    try:
        if len(data) > INDENTED:
            with gc_disabled():
                orjson.loads(data)
            return "JSON", data.decode()
        return "JSON", json.dumps(json.loads(data), indent=2, ensure_ascii=False)
    except (ValueError, RecursionError):
        pass  # no JSON, or none that can be indented
    try:
        return "text", data.decode()
    except UnicodeDecodeError:
        return "bytes", _hex(data if whole else data[:_BYTES])


def _hex(data: bytes) -> str:
    rows = (data[place : place + _ROW] for place in range(0, len(data), _ROW))
    return "\n".join(
        f"{index * _ROW:06x}  {row.hex(' '):<47}  {''.join(_letter(each) for each in row)}"
        for index, row in enumerate(rows)
    )


def _letter(byte: int) -> str:
    return chr(byte) if 32 <= byte < 127 else "·"
