"""Lines of a stream as events."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from typing import IO, Any

from holdfast.cli.options import parse_time
from holdfast.model.errors import InvalidInput
from holdfast.model.event import Event, check_event

_CHUNK = 1 << 17  # at two bytes a line, fewer events than a batch may have
_FIELDS = ("data", "id", "source", "type", "key", "time", "headers")


def parse_json(text: str | bytes) -> Any:
    """A JSON value."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise InvalidInput(f"not JSON: {error.msg} at character {error.pos + 1}") from None
    except (UnicodeDecodeError, RecursionError) as error:
        raise InvalidInput(f"not JSON: {error}") from None


def read_events(stream: IO[bytes], common: Mapping[str, Any], *, envelope: bool) -> Iterator[list[Event]]:
    """The events of the lines that have arrived, as soon as they have; empty lines are skipped.

    What a line leaves out is taken from `common`. A wrong line is raised after the events before it.
    """
    first = 1
    for lines in _arrived(stream):
        events: list[Event] = []
        try:
            for number, line in enumerate(lines, first):
                if line.strip():
                    events.append(_event(number, line, common, envelope))
        except InvalidInput:
            if events:
                yield events
            raise
        if events:
            yield events
        first += len(lines)


def _arrived(stream: IO[bytes]) -> Iterator[list[bytes]]:
    rest = b""
    while chunk := os.read(stream.fileno(), _CHUNK):
        *lines, rest = (rest + chunk).split(b"\n")
        yield lines
    yield [rest]


def _event(number: int, line: bytes, common: Mapping[str, Any], envelope: bool) -> Event:
    try:
        value = parse_json(line)
        fields = _fields(value) if envelope else {"data": value}
        return check_event(Event(**(dict(common) | fields)))
    except InvalidInput as error:
        raise InvalidInput(f"line {number}: {error}") from None


def _fields(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict) or not value.keys() <= set(_FIELDS):
        raise InvalidInput(f"no event; write an object with some of {', '.join(_FIELDS)}")
    headers = value.get("headers", {})
    if not isinstance(headers, dict):
        raise InvalidInput(f"headers {headers!r} are no object; write names and texts")
    if value.get("time") is not None:
        value["time"] = parse_time(str(value["time"]), "time")
    return value
