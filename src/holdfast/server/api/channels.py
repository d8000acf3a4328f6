"""Channels: which there are, how much they hold, and their logs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from fastapi import Depends, Query, Response
from pydantic import Field

from holdfast.bus.budget import read_within
from holdfast.contracts import Backend, Consumer
from holdfast.model.errors import InvalidInput, NotFound
from holdfast.server.admission import Router
from holdfast.server.answers import answer, entry_of
from holdfast.server.api.models import EntryOut, Model
from holdfast.server.auth.caller import Caller
from holdfast.server.auth.guard import needs
from holdfast.server.context import Known, System
from holdfast.server.openapi import may
from holdfast.server.parameters import AfterName, AfterPosition, Channel, Limit, Page
from holdfast.server.turns import Turns

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
    system: Known,
    caller: Annotated[Caller, Depends(needs("read", filtered=True))],
    limit: Limit = 100,
    after: AfterName = None,
) -> Page[ChannelOut]:
    """All channels by name, at most 100 on a page: the stores are asked about each."""
    stores, most = await system.letters.stores(), min(limit, SHOWN)
    names = sorted({name for store in stores for name in await store.channels() if caller.sees(name)})
    rest = [name for name in names if after is None or name > after]
    shown = await _channels(stores, rest[:most])
    return Page(items=shown, after=rest[most - 1] if len(rest) > most else None)


@router.get("/channels/{channel}")
async def show_channel(
    channel: Channel, system: Known, caller: Annotated[Caller, Depends(needs("read"))]
) -> ChannelOut:
    """One channel: how much it holds, and who works on it."""
    return await _channel(await system.letters.stores(), channel)


@router.put("/channels/{channel}", responses={201: {"model": ChannelOut, "description": "It is new"}})
async def put_channel(
    channel: Channel,
    body: ChannelIn,
    system: Known,
    response: Response,
    caller: Annotated[Caller, Depends(needs("operate"))],
) -> ChannelOut:
    """Make sure that a channel exists, and give it a name for people."""
    stores = await system.letters.stores()
    if not any([channel in await store.channels() for store in stores]):
        response.status_code = 201
    await system.bus.create_channel(channel)
    for store in stores:
        await store.set_display(channel, None, body.display_name)
    await system.audit.did(caller.actor, "put channel", channel)
    return await _channel(stores, channel)


@router.get("/channels/{channel}/events", response_model=Page[EntryOut], responses=may(410))
async def read_events(
    channel: Channel,
    system: Known,
    caller: Annotated[Caller, Depends(needs("read"))],
    limit: Limit = 100,
    after: AfterPosition = None,
    partition: Annotated[int, Query(ge=0, le=9999, description="Which store's share of the log.")] = 0,
) -> Response:
    """A log in order, after a position. `after` of the answer is where to go on, also when new ones come. It
    ends early with the event that reaches `server.limits.answer` bytes."""
    store = await _store(system, partition)
    await check_channel(store, channel)
    turns = Turns()
    found = await read_within(store, channel, after, limit, system.config.server.limits.answer)
    items = [await entry_of(each, turns) for each in found]
    return answer({"items": items, "after": found[-1].position if found else after})


async def check_channel(store: Backend, channel: str) -> None:
    """Raise `NotFound` where a store has no such channel."""
    if channel not in await store.channels():
        raise _missing(channel)


async def _store(system: System, partition: int) -> Backend:
    stores = await system.letters.stores()
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
        known = set(await store.channels())
        for name in names:
            if name in known:
                await _add(found, store, name, await store.consumers(name))
    return [found[name] for name in names if name in found]


async def _add(
    found: dict[str, ChannelOut], store: Backend, name: str, consumers: Sequence[Consumer]
) -> None:
    channel = found.setdefault(name, ChannelOut(name=name, display_name="", events=0, bytes=0, consumers=[]))
    size = await store.size(name)
    channel.events, channel.bytes = channel.events + size.events, channel.bytes + size.bytes
    channel.consumers = sorted({*channel.consumers, *(each.name for each in consumers)})
    # A channel's own statistics may count its events: the consumers know its name too.
    known = consumers[0].channel_display if consumers else (await store.channel_stats(name)).display
    channel.display_name = channel.display_name or known or name


def _missing(channel: str) -> NotFound:
    return NotFound(f"there is no channel {channel!r}; the first publish makes it")
