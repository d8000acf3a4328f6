"""Payloads: an event's bytes as a person can read them. Pure."""

from __future__ import annotations

import json
from dataclasses import dataclass

import orjson

from holdfast.model.garbage import uncollected

SHOWN = 64 << 10
INDENTED = 256 << 10
"""What is larger is shown as it is: to indent it would hold up everybody."""
_BYTES = 4 << 10
_ROW = 16


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
            with uncollected():
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
