"""Publishing: one event, a batch, or a stream of lines."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import Header, Request, Response
from pydantic import Field, ValidationError

from holdfast.model.errors import InvalidInput, TooLarge
from holdfast.model.event import SAFE, Event, check_event
from holdfast.server.api.models import Channel, EventIn, Model, ReceiptOut, Time, Whole
from holdfast.server.auth.guard import Publishes, Router
from holdfast.server.bodies import BodyBounds, TimeSlice, parse_line
from holdfast.server.problems import check_kind
from holdfast.server.system import Known, System

router = Router(tags=["publish"], prefix="/channels/{channel}/events")

IdempotencyKey = Annotated[
    str | None,
    Header(
        pattern=f"^{SAFE}$",
        max_length=400,
        description="Makes ids for events that have none, so that repeating the call changes nothing.",
    ),
]
_CHUNK = 16 << 10
NDJSON = "application/x-ndjson"


class Single(EventIn):
    """An event, and how it is delivered."""

    at: Time | None = None
    """Not before this time."""
    priority: Annotated[int, Field(ge=-100, le=100), Whole] = 0
    """Higher ones are polled first."""


class Batch(Model):
    """Events that are published together, all or none on each store."""

    events: list[EventIn] = Field(min_length=1)
    at: Time | None = None
    priority: Annotated[int, Field(ge=-100, le=100), Whole] = 0


class Receipts(Model):
    """Receipts in the order of the events."""

    receipts: list[ReceiptOut]


class Streamed(Model):
    """How much of a stream was published."""

    published: int
    duplicates: int


@router.post(
    "", status_code=201, responses={200: {"model": ReceiptOut, "description": "It was there before"}}
)
async def publish_event(
    channel: Channel,
    body: Single,
    system: Known,
    response: Response,
    caller: Publishes,
    idempotency_key: IdempotencyKey = None,
) -> ReceiptOut:
    """Publish one event. It is durable when this answers; a repeat with the same id is a no-op."""
    await system.capacity.check_channel(caller, channel)
    events = [body.event(idempotency_key or "")]
    [receipt] = await system.bus.publish_many(channel, events, at=body.at, priority=body.priority)
    response.status_code = 200 if receipt.duplicate else 201
    return ReceiptOut.of(receipt)


@router.post("/batch", status_code=201)
async def publish_batch(
    channel: Channel, body: Batch, system: Known, caller: Publishes, idempotency_key: IdempotencyKey = None
) -> Receipts:
    """Publish many events at once: far cheaper than one by one."""
    most = system.config.server.limits.batch
    if len(body.events) > most:
        raise TooLarge(f"{len(body.events)} events; send at most {most} at once, or a stream")
    await system.capacity.check_channel(caller, channel)
    events = [each.event(_name(idempotency_key, place)) for place, each in enumerate(body.events)]
    receipts = await system.bus.publish_many(channel, events, at=body.at, priority=body.priority)
    return Receipts(receipts=[ReceiptOut.of(each) for each in receipts])


@router.post(
    "/stream",
    openapi_extra={
        "requestBody": {
            "required": True,
            "description": "One event on each line.",
            "content": {NDJSON: {"schema": {"type": "string"}, "example": '{"data": 1}\n{"data": 2}\n'}},
        }
    },
)
async def publish_stream(
    channel: Channel,
    request: Request,
    system: Known,
    caller: Publishes,
    idempotency_key: IdempotencyKey = None,
) -> Streamed:
    """Publish lines of JSON as they come, in batches.

    A line that is wrong ends it with its number and with how many lines before it are published. With ids or
    an idempotency key the whole stream can be sent again.
    """
    check_kind(request, NDJSON)
    await system.capacity.check_channel(caller, channel)
    done = Streamed(published=0, duplicates=0)
    async for batch in _batches(request, system, idempotency_key or "", done):
        receipts = await system.bus.publish_many(channel, batch)
        done.duplicates += sum(each.duplicate for each in receipts)
        done.published += sum(not each.duplicate for each in receipts)
    if not done.published + done.duplicates:
        raise InvalidInput("the stream has no line; send one JSON object on each")
    return done


async def _batches(request: Request, system: System, key: str, done: Streamed) -> AsyncIterator[list[Event]]:
    """As many events as one batch takes, again and again. A wrong line says how far the others got."""
    limits, timeslice = system.config.server.limits, TimeSlice()
    bounds = BodyBounds.of(limits)
    batch, size = list[Event](), 0
    async for number, line in _lines(request):
        try:
            value = await parse_line(line, bounds, timeslice)
            batch.append(check_event(_event(value, _name(key, number - 1))))
        except InvalidInput as error:
            before = done.published + done.duplicates
            raise type(error)(f"line {number}: {error}; {before} events before it are published") from None
        size += len(line)
        if len(batch) >= limits.batch or size >= limits.answer:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


async def _lines(request: Request) -> AsyncIterator[tuple[int, bytes]]:
    """Every line that is not blank, with its number."""
    number, parts, timeslice = 0, list[bytes](), TimeSlice()
    async for chunk in _chunks(request):
        first, *others = chunk.split(b"\n")
        parts.append(first)
        for other in others:
            line, parts, number = b"".join(parts), [other], number + 1
            if line.strip():
                yield number, line
        await timeslice.pause()
    if (line := b"".join(parts)).strip():
        yield number + 1, line


async def _chunks(request: Request) -> AsyncIterator[bytes]:
    """The body in small pieces, however large those are that come."""
    async for chunk in request.stream():
        for start in range(0, len(chunk), _CHUNK):
            yield chunk[start : start + _CHUNK]


def _event(value: Any, fallback: str) -> Event:
    try:
        return EventIn.model_validate(value).event(fallback)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise InvalidInput(f"{where}: {first['msg']}" if where else first["msg"]) from None


def _name(key: str | None, place: int) -> str:
    return f"{key}-{place}" if key else ""
