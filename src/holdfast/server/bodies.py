"""Bodies: forms and JSON, read in short pieces, so that a large one does not hold up the event loop.

JSON is bounded before anything is built from it: how deep it nests, how many values it has, how long its
lists and how wide its objects are. Inside of `data` (an event's), `value` (a patch's) and `schema` only
depth and values count. An event's data becomes bytes as soon as it was parsed, event by event: the objects of
a whole batch would take twenty times its size.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import Any, Self
from urllib.parse import unquote_to_bytes

import orjson
from fastapi.exceptions import RequestValidationError
from starlette.datastructures import FormData
from starlette.requests import Request

from holdfast.config.config import ServerLimits
from holdfast.deadletters.payloads import DIGITS, LONG, exact_integers
from holdfast.model.errors import InvalidInput, TooLarge
from holdfast.model.event import MAX_DATA, encode_data
from holdfast.model.gc_pause import gc_disabled
from holdfast.server.errors import PayloadTooLarge

_SLICE_SECONDS = 0.005
ITEMS = 1_000
"""The dead letters that an operation can name, wherever batches are smaller."""
URL_ENCODED = "application/x-www-form-urlencoded"
FORM_PIECE = 16 << 10
MEMBERS = 100
"""The most members of an object that is no data."""
_BATCH = 4
"""A batch may hold so many times the values of one event."""
_TOKENS = 1_000
_EVENTS = b'"events"'
_FREE = (b'"data"', b'"value"', b'"schema"')
# A text or a mark, with what is before it. Nothing is tried twice, and one step is at most a megabyte.
_INSIDE = rb'(?:[^"\\]{1,4096}+|\\.){0,256}+("?)'
_TOKEN = re.compile(rb'[^"\[\]{},]{0,65536}+(?:("' + _INSIDE + rb")|[\[\]{},]|)", re.DOTALL)
_REST = re.compile(_INSIDE, re.DOTALL)
_LONGEST = 65_536
_SLICE = 1 << 18
_LARGEST = 4 * MAX_DATA
"""Text with its letters escaped takes up to three times as much, and more only where it is all controls."""
_MARKS = frozenset(b"[]{},")


class TimeSlice:
    """Splits long work on the event loop: after 5 ms, `pause` lets other tasks run."""

    def __init__(self) -> None:
        self._since = time.perf_counter()

    async def pause(self) -> None:
        """Called between two steps: yields to the event loop if the slice is used up."""
        if time.perf_counter() - self._since > _SLICE_SECONDS:
            await asyncio.sleep(0)
            self._since = time.perf_counter()


async def form_fields(body: bytes) -> list[tuple[str, str]]:
    """Names and values of a URL-encoded body in their order. It is decoded a piece at a time: a megabyte of
    escapes, decoded at once, would hold up everybody and take seventy times its size."""
    found, since = [], 0
    for field in filter(None, body.split(b"&")):
        halves = []
        for half in field.partition(b"=")[::2]:
            decoded = []
            for piece in _form_pieces(half):
                decoded.append(unquote_to_bytes(piece.replace(b"+", b" ")))
                since += len(piece)
                if since >= FORM_PIECE:
                    await asyncio.sleep(0)
                    since = 0
            halves.append(b"".join(decoded).decode(errors="replace"))
        found.append((halves[0], halves[1]))
    return found


def _form_pieces(text: bytes) -> Iterator[bytes]:
    """A text in pieces that cut no escape."""
    begin = 0
    while begin < len(text):
        end = begin + FORM_PIECE
        cut = text.rfind(b"%", end - 2, end)
        if cut != -1:
            end = cut
        yield text[begin:end]
        begin = end


@dataclass(frozen=True, slots=True)
class BodyBounds:
    """How much JSON is taken."""

    depth: int
    values: int
    """In one event, or in a body that is no batch."""
    items: int
    """In a list that is no data."""

    @classmethod
    def of(cls, limits: ServerLimits) -> Self:
        """As the configuration has them."""
        return cls(limits.depth, limits.values, max(limits.batch, ITEMS))


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

    def __init__(self, text: bytes, bounds: BodyBounds) -> None:
        self._text, self._bounds = text, bounds
        self._stack = [_Open(is_list=True, free=True)]
        self._values = self._event_values = self._texts = 0
        self._start = 0
        """Where the next event of a batch begins, while inside of one."""
        self.events: list[tuple[int, int]] = []
        """The start and the end of each event of a batch."""
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
            if worked > _TOKENS:
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


async def parse_body(body: bytes, bounds: BodyBounds, timeslice: TimeSlice | None = None) -> Any:
    """The value of a body, with the data of events encoded. Raises `TooLarge` or `InvalidInput` where it is
    over the bounds, `RequestValidationError` where it is no JSON in UTF-8."""
    timeslice, scan = timeslice or TimeSlice(), _Scan(body, bounds)
    for _ in scan.pieces():
        await timeslice.pause()
    for start, end in scan.events or [(0, len(body))]:
        # An error of the parser holds all that it was given, as text.
        if end - start > _LARGEST:
            raise TooLarge(
                f"{end - start} bytes of JSON; at most {_LARGEST} are taken as one, send less at once"
            )
    if not scan.events:
        return await _event(body, 0, timeslice)
    first, last = scan.events[0][0], scan.events[-1][1]
    value = await _loads(body[:first] + body[last:], 0, timeslice)
    value["events"] = [await _event(body[start:end], start, timeslice) for start, end in scan.events]
    return value


async def parse_line(line: bytes, bounds: BodyBounds, timeslice: TimeSlice) -> Any:
    """The same for a line of a stream; raises `InvalidInput` where it is no JSON."""
    try:
        return await parse_body(line, bounds, timeslice)
    except RequestValidationError as error:
        raise InvalidInput(f"this is not JSON: {error.errors()[0]['ctx']['error']}") from None


async def _event(text: bytes, place: int, timeslice: TimeSlice) -> Any:
    """What may be an event: its data is encoded before the next one is parsed."""
    value = await _loads(text, place, timeslice)
    await timeslice.pause()
    if isinstance(value, dict) and value.get("data") is not None:
        value["data"] = Encoded(encode_data(value["data"]))
        await timeslice.pause()
    return value


async def _loads(text: bytes, place: int, timeslice: TimeSlice) -> Any:
    """As `exact_json`, in two steps."""
    try:
        with gc_disabled():
            value = orjson.loads(text)
        if await _has_long(text, timeslice):
            del value
            await timeslice.pause()
            with gc_disabled():
                value = exact_integers(text)
        return value
    except json.JSONDecodeError as error:
        raise _no_json(place + error.pos, error.msg) from None
    except ValueError as error:
        raise _no_json(place, str(error)) from None


async def _has_long(text: bytes, timeslice: TimeSlice) -> bool:
    """Whether it may have an integer that orjson does not keep. Megabytes take a while to look through."""
    for begin in range(0, len(text), _SLICE):
        await timeslice.pause()
        if LONG.search(text, begin, begin + _SLICE + DIGITS):
            return True
    return False


def _no_json(place: int, why: str) -> RequestValidationError:
    """The error as FastAPI words it."""
    error = {"type": "json_invalid", "loc": ("body", place), "msg": f"JSON decode error: {why}", "input": {}}
    return RequestValidationError([error | {"ctx": {"error": why}}])


class BoundedRequest(Request):
    """A request whose JSON was read within the limits."""

    value: Any = None

    async def json(self) -> Any:
        """What `read_json` parsed."""
        return self.value

    async def read_json(self) -> None:
        """Read and parse the body. Its bytes are dropped: the framework only asks whether there are any."""
        body = await self._whole()
        if body:
            self.value = await parse_body(body, BodyBounds.of(self.app.state.system.config.server.limits))
            self._body = b"parsed"

    async def read_form(self, size: int, number: int) -> None:
        """Read the body as a form of at most so many bytes and fields."""
        body = await self._whole(size)
        if body.count(b"&") > number:
            raise PayloadTooLarge(f"a form of more than {number} fields; choose fewer at once")
        encoded = self.headers.get("content-type", "").partition(";")[0].strip().lower() == URL_ENCODED
        self._form = FormData([*(await form_fields(body) if encoded else ())])

    async def _whole(self, most: int | None = None) -> bytes:
        """The body. Raises `PayloadTooLarge` where it is longer than this."""
        size, parts = 0, []
        async for part in self.stream():
            size += len(part)
            if most is not None and size > most:
                raise PayloadTooLarge(f"the body is over the limit of {most} bytes; send less at once")
            parts.append(part)
        self._body = b"".join(parts)
        return self._body
