"""Channels: all of them, one of them with its readers and what holds its retention back, and one consumer."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Form, Request, Response
from fastapi.responses import RedirectResponse

from holdfast import wiring
from holdfast.deadletters.items import ClusterView
from holdfast.model.duration import format_duration
from holdfast.model.errors import InvalidInput, NotFound
from holdfast.model.schema import SchemaField, fields
from holdfast.model.scopes import Right
from holdfast.model.states import State
from holdfast.server.api.models import Channel, Consumer
from holdfast.server.pages.formatting import size
from holdfast.server.pages.home import ChannelRow, channel_row, channel_rows
from holdfast.server.pages.layout import PageOperates, PageReads, PageReadsFiltered, PageRoute, page, render
from holdfast.server.pages.live import SnapshotService, live_page, snapshots_of
from holdfast.server.pages.snapshot import Snapshot, SnapshotHistory, StreamSnapshot, WorkerSnapshot
from holdfast.server.system import Known, System
from holdfast.upkeep.rules import Keep
from holdfast.upkeep.state import SWEEPER, get_report

router = APIRouter(route_class=PageRoute, include_in_schema=False)

SHOWN = 200
"""How many channels, and consumers of one channel, there is room for on a page."""
STATES = (State.READY, State.SCHEDULED, State.LEASED, State.DEAD)
TONES = {State.READY: "flow", State.SCHEDULED: "wait", State.LEASED: "good", State.DEAD: "bad"}


@dataclass(frozen=True, slots=True)
class WorkerRow:
    """A worker consumer of a channel."""

    name: str
    snapshot: WorkerSnapshot
    done: float
    values: list[float]


@dataclass(frozen=True, slots=True)
class StreamRow:
    """A stream consumer of a channel."""

    name: str
    snapshot: StreamSnapshot
    values: list[float]


@dataclass(frozen=True, slots=True)
class ChannelView:
    """One channel."""

    row: ChannelRow
    bytes: int
    now: datetime | None
    workers: list[WorkerRow]
    streams: list[StreamRow]
    kept: str
    """How long its events are kept, in words."""
    held: str | None
    """The consumer that keeps the sweeper from removing what is old enough."""
    left: int
    """How many consumers there was no room for."""


@dataclass(frozen=True, slots=True)
class SchemaView:
    """The schema of a channel."""

    version: int
    changed_at: datetime
    fields: list[SchemaField]
    left: int
    """How many fields there was no room for."""
    text: str
    """All of it, as JSON."""


@dataclass(frozen=True, slots=True)
class ConsumerView:
    """One worker consumer."""

    channel: str
    row: WorkerRow
    now: datetime | None
    states: list[tuple[str, int, str]]
    """State, jobs and tone."""
    share: list[tuple[str, float, float]]
    """Tone, from where and how wide, for a bar of 100."""
    waiting: list[float]
    dead: list[float]
    policy: dict[str, object]
    clusters: list[ClusterView]


@router.get("/channels")
async def channels(request: Request, system: Known, viewer: PageReadsFiltered, q: str = "") -> Response:
    """All channels; a search by a part of their names."""
    snapshots = await snapshots_of(request)
    rows = [row for row in channel_rows(snapshots.history) if viewer.caller.sees(row.name) and q in row.name]
    rows.sort(key=lambda row: row.name)
    return page(request, "channels.html", viewer, rows=rows[:SHOWN], left=len(rows[SHOWN:]), q=q)


@router.get("/channels/{channel}")
async def channel(request: Request, channel: Channel, system: Known, viewer: PageReads) -> Response:
    """One channel."""
    snapshots, held = await _snapshots_with(request, system, channel), await _held(system, channel)
    view, schema = _channel(system, snapshots.history, channel, held), await _schema(system, channel)
    return page(request, "channel.html", viewer, view=view, schema=schema)


@router.get("/live/channels/{channel}")
async def channel_live(request: Request, channel: Channel, system: Known, viewer: PageReads) -> Response:
    """The same, with every snapshot."""
    snapshots, held = await _snapshots_with(request, system, channel), await _held(system, channel)
    return live_page(
        system,
        viewer.caller,
        snapshots,
        lambda: render("channel_live.html", view=_channel(system, snapshots.history, channel, held)),
    )


@router.get("/channels/{channel}/consumers/{consumer}")
async def consumer(
    request: Request, channel: Channel, consumer: Consumer, system: Known, viewer: PageReads
) -> Response:
    """One worker consumer."""
    snapshots = await snapshots_of(request)
    view = await _consumer(system, snapshots.history, channel, consumer, viewer.caller.right("read"))
    return page(request, "consumer.html", viewer, view=view)


@router.post("/channels/{channel}/consumers/{consumer}/pause")
async def pause(
    channel: Channel, consumer: Consumer, system: Known, viewer: PageOperates, paused: Annotated[bool, Form()]
) -> Response:
    """Stop handing out its jobs, or go on."""
    for store in await system.deadletters.stores():
        await store.channels.set_paused(channel, consumer, paused)
    await system.audit.did(viewer.caller.actor, "pause" if paused else "resume", f"{channel}/{consumer}")
    notice = "paused" if paused else "resumed"
    return RedirectResponse(f"/channels/{channel}/consumers/{consumer}?notice={notice}", 303)


async def _snapshots_with(request: Request, system: System, channel: str) -> SnapshotService:
    """The application's service. A channel that was made since its latest snapshot gets one."""
    snapshots = await snapshots_of(request)
    for store in await system.deadletters.stores():
        if snapshots.history.latest is not None and channel in snapshots.history.latest.channels:
            break
        with suppress(NotFound):
            await store.channels.stats(channel)
            await snapshots.take()
    return snapshots


async def _schema(system: System, channel: str) -> SchemaView | str | None:
    """What was declared of a channel's data, or why that cannot be read."""
    try:
        found = await (await system.bus.schemas()).get(channel)
    except InvalidInput as error:  # another client has written it
        return str(error)
    if found is None:
        return None
    named, left = fields(found.schema, SHOWN)
    text = json.dumps(found.schema, indent=2, ensure_ascii=False)
    return SchemaView(found.version, found.changed_at, named, left, text)


async def _held(system: System, channel: str) -> str | None:
    """The consumer that held back the last sweep of a channel, on any store."""
    for store in await system.deadletters.stores():
        report = await get_report(store, system.config.namespace, SWEEPER)
        for each in report[1]["held"] if report is not None else ():
            if each["channel"] == channel:
                return str(each["consumer"])
    return None


def _channel(system: System, history: SnapshotHistory, channel: str, held: str | None) -> ChannelView:
    snapshot = history.latest or Snapshot()
    if channel not in snapshot.channels:
        raise NotFound(f"there is no channel {channel}; the first publish makes it")
    workers = sorted((name, each) for (of, name), each in snapshot.workers.items() if of == channel)
    streams = sorted((name, each) for (of, name), each in snapshot.streams.items() if of == channel)
    return ChannelView(
        row=channel_row(history, snapshot, channel, [each for _, each in workers]),
        bytes=snapshot.channels[channel].bytes,
        now=snapshot.now,
        workers=[_worker(history, channel, name, each) for name, each in workers[:SHOWN]],
        streams=[
            StreamRow(name, each, history.series("lag", channel, name)) for name, each in streams[:SHOWN]
        ],
        left=len(workers[SHOWN:]) + len(streams[SHOWN:]),
        kept=retention_text(wiring.rules(system.config).keep(channel)),
        held=held,
    )


def _worker(history: SnapshotHistory, channel: str, name: str, snapshot: WorkerSnapshot) -> WorkerRow:
    done = history.series("done", channel, name)
    return WorkerRow(name, snapshot, history.now("done", channel, name), done)


def retention_text(keep: Keep | None) -> str:
    """How long a channel's log is kept, in words."""
    if keep is None or (keep.max_age is None and keep.max_bytes is None):
        return "for ever: no retention is configured"
    age = f"for {format_duration(keep.max_age)}" if keep.max_age is not None else "for ever"
    if keep.max_bytes is None:
        return age
    full = "refuses publishes" if keep.on_full == "refuse" else "drops the oldest"
    return f"{age}, up to {size(keep.max_bytes)}, then {full}"


async def _consumer(
    system: System, history: SnapshotHistory, channel: str, consumer: str, right: Right
) -> ConsumerView:
    stored = await (await system.deadletters.store(0)).channels.consumer(channel, consumer)
    snapshot = history.latest or Snapshot()
    mine = snapshot.workers.get((channel, consumer), WorkerSnapshot())
    return ConsumerView(
        channel=channel,
        row=_worker(history, channel, consumer, mine),
        now=snapshot.now,
        states=[(state.value, mine.states[state], TONES[state]) for state in STATES],
        share=_share(mine),
        waiting=history.series("waiting", channel, consumer),
        dead=history.series("dead", channel, consumer),
        policy=stored.policy.to_json(),
        clusters=await system.deadletters.clusters(channel, consumer, 5, right),
    )


def _share(snapshot: WorkerSnapshot) -> list[tuple[str, float, float]]:
    """The jobs by state as one bar."""
    total, at, found = sum(snapshot.states[state] for state in STATES), 0.0, []
    for state in STATES:
        width = 100 * snapshot.states[state] / total if total else 0.0
        found.append((TONES[state], at, width))
        at += width
    return found
