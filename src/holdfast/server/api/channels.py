"""Channels: which there are, how much they hold, and their logs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from fastapi import Query, Response
from pydantic import Field

from holdfast.bus.byte_limits import read_within
from holdfast.contracts import Backend, Consumer
from holdfast.model.errors import InvalidInput, NotFound
from holdfast.server.api.models import (
    AfterName,
    AfterPosition,
    Channel,
    EntryOut,
    Limit,
    Model,
    Page,
    entry_json,
    json_response,
)
from holdfast.server.auth.guard import Operates, Reads, ReadsFiltered, Router
from holdfast.server.bodies import TimeSlice
from holdfast.server.openapi import may_fail
from holdfast.server.system import Known, System

router = Router(tags=["channels"])

SHOWN = 100
"""How many channels a page has at most."""


class ChannelOut(Model):
    """A channel, all partitions together."""

    name: str = Field(examples=["orders"])
    display_name: str
    events: int
    """About how many its log holds."""
    bytes: int
    """About how many bytes they take."""
    consumers: list[str]


class ChannelIn(Model):
    """What can be set on a channel."""

    display_name: str = Field(default="", max_length=255)
    """A name for people; empty takes it away."""


@router.get("/channels")
async def list_channels(
    system: Known, caller: ReadsFiltered, limit: Limit = 100, after: AfterName = None
) -> Page[ChannelOut]:
    """All channels by name, at most 100 on a page: the stores are asked about each."""
    stores, most = await system.deadletters.stores(), min(limit, SHOWN)
    names = sorted({name for store in stores for name in await store.channels.names() if caller.sees(name)})
    rest = [name for name in names if after is None or name > after]
    shown = await _channels(stores, rest[:most])
    return Page(items=shown, after=rest[most - 1] if len(rest) > most else None)


@router.get("/channels/{channel}")
async def show_channel(channel: Channel, system: Known, caller: Reads) -> ChannelOut:
    """One channel: how much it holds, and who works on it."""
    return await _channel(await system.deadletters.stores(), channel)


@router.put("/channels/{channel}", responses={201: {"model": ChannelOut, "description": "It is new"}})
async def put_channel(
    channel: Channel, body: ChannelIn, system: Known, response: Response, caller: Operates
) -> ChannelOut:
    """Make sure that a channel exists, and give it a name for people."""
    stores = await system.deadletters.stores()
    if not any([channel in await store.channels.names() for store in stores]):
        response.status_code = 201
    await system.bus.create_channel(channel)
    for store in stores:
        await store.channels.set_display(channel, None, body.display_name)
    await system.audit.did(caller.actor, "put channel", channel)
    return await _channel(stores, channel)


@router.get("/channels/{channel}/events", response_model=Page[EntryOut], responses=may_fail(410))
async def read_events(
    channel: Channel,
    system: Known,
    caller: Reads,
    limit: Limit = 100,
    after: AfterPosition = None,
    partition: Annotated[int, Query(ge=0, le=9999, description="Which store's share of the log.")] = 0,
) -> Response:
    """A log in order, after a position. `after` of the answer is where to go on, also when new ones come. It
    ends early with the event that reaches `server.limits.answer` bytes."""
    store = await _store(system, partition)
    await check_channel(store, channel)
    timeslice = TimeSlice()
    found = await read_within(store, channel, after, limit, system.config.server.limits.answer)
    items = [await entry_json(each, timeslice) for each in found]
    return json_response({"items": items, "after": found[-1].position if found else after})


async def check_channel(store: Backend, channel: str) -> None:
    """Raise `NotFound` where a store has no such channel."""
    if channel not in await store.channels.names():
        raise _missing(channel)


async def _store(system: System, partition: int) -> Backend:
    stores = await system.deadletters.stores()
    if partition >= len(stores):
        raise InvalidInput(f"partition {partition} does not exist; there are {len(stores)}")
    return stores[partition]


async def _channel(stores: Sequence[Backend], channel: str) -> ChannelOut:
    for found in await _channels(stores, [channel]):
        return found
    raise _missing(channel)


async def _channels(stores: Sequence[Backend], names: Sequence[str]) -> list[ChannelOut]:
    """What the stores that know them say together."""
    found: dict[str, ChannelOut] = {}
    for store in stores:
        known = set(await store.channels.names())
        for name in names:
            if name in known:
                await _add(found, store, name, await store.channels.consumers(name))
    return [found[name] for name in names if name in found]


async def _add(
    found: dict[str, ChannelOut], store: Backend, name: str, consumers: Sequence[Consumer]
) -> None:
    channel = found.setdefault(name, ChannelOut(name=name, display_name="", events=0, bytes=0, consumers=[]))
    size = await store.retention.size(name)
    channel.events, channel.bytes = channel.events + size.events, channel.bytes + size.bytes
    channel.consumers = sorted({*channel.consumers, *(each.name for each in consumers)})
    # A channel's own statistics may count its events: the consumers know its name too.
    known = consumers[0].channel_display if consumers else (await store.channels.stats(name)).display
    channel.display_name = channel.display_name or known or name


def _missing(channel: str) -> NotFound:
    return NotFound(f"there is no channel {channel!r}; the first publish makes it")
