"""Lines of a stream as events."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from io import BufferedIOBase
from typing import Any

from holdfast.cli.options import parse_time
from holdfast.model.errors import InvalidInput
from holdfast.model.event import Event, check_event

_CHUNK = 1 << 20
_FIELDS = ("data", "id", "source", "type", "key", "time", "headers")


def parse_json(text: str | bytes) -> Any:
    """A JSON value."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"not JSON: {error}") from None


def read_events(stream: BufferedIOBase, like: Event, *, envelope: bool) -> Iterator[list[Event]]:
    """The events of the lines that have arrived, as soon as they have; empty lines are skipped.

    What a line leaves out is taken from `like`.
    """
    number = 0
    for lines in _arrived(stream):
        events = []
        for number, line in enumerate(lines, number + 1):
            if not line.strip():
                continue
            try:
                events.append(check_event(_event(parse_json(line), like, envelope)))
            except InvalidInput as error:
                raise InvalidInput(f"line {number}: {error}") from None
        if events:
            yield events


def _arrived(stream: BufferedIOBase) -> Iterator[list[bytes]]:
    rest = b""
    while chunk := stream.read1(_CHUNK):
        *lines, rest = (rest + chunk).split(b"\n")
        yield lines
    yield [rest]


def _event(value: Any, like: Event, envelope: bool) -> Event:
    if not envelope:
        return replace(like, data=value)
    if not isinstance(value, dict) or not value.keys() <= set(_FIELDS):
        raise InvalidInput(f"no event; write an object with some of {', '.join(_FIELDS)}")
    headers = value.get("headers", {})
    if not isinstance(headers, dict):
        raise InvalidInput(f"headers {headers!r} are no object; write names and texts")
    if value.get("time") is not None:
        value["time"] = parse_time(str(value["time"]), "time")
    return replace(like, **({"data": None} | value))
