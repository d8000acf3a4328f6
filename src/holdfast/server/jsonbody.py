"""JSON bodies: looked through in short pieces before anything is built from them, then parsed.

What a body may hold is bounded before it costs anything: how deep it nests, how many values it has, how long
its lists and how wide its objects are. Inside of `data` (an event's) and `value` (a patch's) only depth and
values count. An event's data becomes bytes as soon as it was parsed, event by event: the objects of a whole
batch would take twenty times its size.
"""

from __future__ import annotations

import json
import re
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import Any

import orjson
from fastapi.exceptions import RequestValidationError

from holdfast.deadletters.items import DIGITS, LONG, exact_integers
from holdfast.model.errors import InvalidInput, TooLarge
from holdfast.model.event import MAX_DATA, encode_data
from holdfast.model.garbage import uncollected
from holdfast.server.turns import Turns

MEMBERS = 100
"""The most members of an object that is no data."""
_BATCH = 4
"""A batch may hold so many times the values of one event."""
_PIECE = 1_000
_EVENTS = b'"events"'
_FREE = (b'"data"', b'"value"')
# A text or a mark, with what stands before it. Nothing is tried twice, and one step is at most a megabyte.
_INSIDE = rb'(?:[^"\\]{1,4096}+|\\.){0,256}+("?)'
_TOKEN = re.compile(rb'[^"\[\]{},]{0,65536}+(?:("' + _INSIDE + rb")|[\[\]{},]|)", re.DOTALL)
_REST = re.compile(_INSIDE, re.DOTALL)
_LONGEST = 65_536
_SLICE = 1 << 18
_LARGEST = 4 * MAX_DATA
"""Text with its letters escaped takes up to three times as much, and more only where it is all controls."""
_MARKS = frozenset(b"[]{},")


@dataclass(frozen=True, slots=True)
class Bounds:
    """How much JSON is taken."""

    depth: int
    values: int
    """In one event, or in a body that is no batch."""
    items: int
    """In a list that is no data."""


class Encoded:
    """An event's data, encoded already."""

    __slots__ = ("content",)

    def __init__(self, content: bytes) -> None:
        self.content = content


@dataclass(slots=True)
class _Open:
    """A list or an object that has not ended yet."""

    is_list: bool
    free: bool
    """Whether it is data: only how deep it nests and its values count."""
    count: int = 0
    """How many commas."""
    key: bytes = b""
    """The last text in it."""


class _Scan:
    """One look through a text of JSON: raises where it is over a bound, and finds the events of a batch."""

    def __init__(self, text: bytes, bounds: Bounds) -> None:
        self._text, self._bounds = text, bounds
        self._stack = [_Open(is_list=True, free=True)]
        self._values = self._event_values = self._texts = 0
        self._start = 0
        """Where the next event of a batch begins, while inside of one."""
        self.events: list[tuple[int, int]] = []
        """From where to where each event of a batch stands."""
        self._batch = False

    def pieces(self) -> Iterator[None]:
        """Work through it, with a stop after every piece."""
        place: int | None = 0
        while place is not None:
            place = yield from self._tokens(place)
            if place is not None:
                place = yield from self._end_of_text(place)

    def _end_of_text(self, place: int) -> Generator[None, None, int | None]:
        """Where a long text ends."""
        while found := _REST.match(self._text, place):
            if found[1]:
                return found.end()
            if found.end() == place:
                raise _no_json(place, "a text without an end")
            place = found.end()
            yield
        return None

    def _tokens(self, start: int) -> Generator[None, None, int | None]:
        """Up to the end, or to the inside of a text that is longer than one step: returns where that is."""
        text, stack, worked = self._text, self._stack, 0
        for token in _TOKEN.finditer(text, start):
            end = token.end()
            if token.lastindex:
                self._texts += 1
                if self._texts > 2 * _BATCH * self._bounds.values:  # more than the values and their names
                    raise self._too_many()
                if not stack[-1].free:
                    stack[-1].key = token[1][:20]
                if not token[2]:
                    return end
            elif end and text[end - 1] in _MARKS:
                self._mark(text[end - 1], end)
            elif end - token.start() == _LONGEST:
                raise TooLarge(
                    f"the JSON has a number, or a blank, of over {_LONGEST} bytes; send none so long"
                )
            worked += 1 + (end - token.start() >> 9)
            if worked > _PIECE:
                worked = 0
                yield
        return None

    def _mark(self, mark: int, end: int) -> None:
        inner = self._stack[-1]
        if mark == 44:  # a comma
            inner.count += 1
            self._value()
            if not inner.free:
                self._check_width(inner)
            if self._start and len(self._stack) == 3:
                self._next_event(end)
        elif mark in b"[{":
            self._value()
            self._open(mark == 91, inner, end)
        elif len(self._stack) > 1:  # one too many is the parser's to refuse
            if self._start and len(self._stack) == 3:
                self._next_event(end)
                self._start = 0
            self._stack.pop()

    def _open(self, is_list: bool, inner: _Open, end: int) -> None:
        if len(self._stack) > self._bounds.depth:
            raise InvalidInput(f"the JSON nests deeper than {self._bounds.depth} levels; flatten it")
        top = len(self._stack) == 1
        free = (inner.free and not top) or inner.key in _FREE
        if is_list and len(self._stack) == 2 and inner.key == _EVENTS and not inner.is_list:
            if self._batch:
                raise InvalidInput("events is there twice; give it once")
            self._batch, self._start, self._event_values = True, end, self._values
        self._stack.append(_Open(is_list, free))

    def _next_event(self, end: int) -> None:
        start, last = self._start, end - 1
        if self._text[last] != 93 or self.events or self._text[start:last].strip():  # not just []
            self.events.append((start, last))
        self._start, self._event_values = end, self._values

    def _value(self) -> None:
        self._values += 1
        most = self._bounds.values
        if self._values - self._event_values > most or self._values > _BATCH * most:
            raise self._too_many()

    def _too_many(self) -> TooLarge:
        most = self._bounds.values
        return TooLarge(
            f"the JSON has more values than are taken: {most:,} in one event, {_BATCH * most:,} in a batch; "
            "send less at once"
        )

    def _check_width(self, inner: _Open) -> None:
        most = self._bounds.items if inner.is_list else MEMBERS
        if inner.count >= most:
            what = "a list" if inner.is_list else "an object"
            raise TooLarge(f"{what} of more than {most} in the body; send at most {most} at once")


async def parsed(body: bytes, bounds: Bounds, turns: Turns | None = None) -> Any:
    """The value of a body, with the data of events encoded: `TooLarge` or `InvalidInput` where it is over the
    bounds, `RequestValidationError` where it is no JSON in UTF-8."""
    turns, scan = turns or Turns(), _Scan(body, bounds)
    for _ in scan.pieces():
        await turns.pause()
    for start, end in scan.events or [(0, len(body))]:
        # An error of the parser holds all that it was given, as text.
        if end - start > _LARGEST:
            raise TooLarge(
                f"{end - start} bytes of JSON; at most {_LARGEST} are taken as one, send less at once"
            )
    if not scan.events:
        return await _event(body, 0, turns)
    first, last = scan.events[0][0], scan.events[-1][1]
    value = await _loads(body[:first] + body[last:], 0, turns)
    value["events"] = [await _event(body[start:end], start, turns) for start, end in scan.events]
    return value


async def parse_line(line: bytes, bounds: Bounds, turns: Turns) -> Any:
    """The same for a line of a stream; `InvalidInput` where it is no JSON."""
    try:
        return await parsed(line, bounds, turns)
    except RequestValidationError as error:
        raise InvalidInput(f"this is not JSON: {error.errors()[0]['ctx']['error']}") from None


async def _event(text: bytes, place: int, turns: Turns) -> Any:
    """What may be an event: its data is encoded before the next one is parsed."""
    value = await _loads(text, place, turns)
    await turns.pause()
    if isinstance(value, dict) and value.get("data") is not None:
        value["data"] = Encoded(encode_data(value["data"]))
        await turns.pause()
    return value


async def _loads(text: bytes, place: int, turns: Turns) -> Any:
    """As `exact_json`, in two steps."""
    try:
        with uncollected():
            value = orjson.loads(text)
        if await _has_long(text, turns):
            del value
            await turns.pause()
            with uncollected():
                value = exact_integers(text)
        return value
    except json.JSONDecodeError as error:
        raise _no_json(place + error.pos, error.msg) from None
    except ValueError as error:
        raise _no_json(place, str(error)) from None


async def _has_long(text: bytes, turns: Turns) -> bool:
    """Whether it may have an integer that orjson does not keep. Megabytes take a while to look through."""
    for begin in range(0, len(text), _SLICE):
        await turns.pause()
        if LONG.search(text, begin, begin + _SLICE + DIGITS):
            return True
    return False


def _no_json(place: int, why: str) -> RequestValidationError:
    """As FastAPI has it."""
    told = {"type": "json_invalid", "loc": ("body", place), "msg": f"JSON decode error: {why}", "input": {}}
    return RequestValidationError([told | {"ctx": {"error": why}}])
