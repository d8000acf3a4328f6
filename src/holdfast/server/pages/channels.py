"""Channels: all of them, one of them with its readers and what holds its retention back, and one consumer."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Form, Request, Response
from fastapi.responses import RedirectResponse

from holdfast import wiring
from holdfast.deadletters.items import ClusterView
from holdfast.model.duration import format_duration
from holdfast.model.errors import NotFound
from holdfast.model.job import State
from holdfast.model.scopes import Right
from holdfast.server.context import Known, System
from holdfast.server.pages.figures import Figures, StreamFigures, WorkerFigures
from holdfast.server.pages.history import History
from holdfast.server.pages.house import PageRoute, page, part
from holdfast.server.pages.live import live
from holdfast.server.pages.overview import ChannelRow, channel_row, channel_rows
from holdfast.server.pages.visit import Visit, visits
from holdfast.server.pages.watch import Watch
from holdfast.server.pages.words import size
from holdfast.server.parameters import Channel, Consumer
from holdfast.upkeep.reports import SWEEPER, get_report
from holdfast.upkeep.rules import Keep

router = APIRouter(route_class=PageRoute, include_in_schema=False)

SHOWN = 200
"""How many channels, and consumers of one channel, there is room for on a page."""
STATES = (State.READY, State.SCHEDULED, State.LEASED, State.DEAD)
TONES = {State.READY: "flow", State.SCHEDULED: "wait", State.LEASED: "good", State.DEAD: "bad"}


@dataclass(frozen=True, slots=True)
class WorkerRow:
    """A worker consumer of a channel."""

    name: str
    figures: WorkerFigures
    done: float
    values: list[float]


@dataclass(frozen=True, slots=True)
class StreamRow:
    """A stream consumer of a channel."""

    name: str
    figures: StreamFigures
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
    """Who keeps the sweeper from removing what is old enough."""
    left: int
    """How many consumers there was no room for."""


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
async def channels(
    request: Request, system: Known, visit: Annotated[Visit, visits("read", filtered=True)], q: str = ""
) -> Response:
    """All channels; a search by a part of their names."""
    watch = await _looked(request)
    rows = [row for row in channel_rows(watch.history) if visit.caller.sees(row.name) and q in row.name]
    rows.sort(key=lambda row: row.name)
    return page(request, "channels.html", visit, rows=rows[:SHOWN], left=len(rows[SHOWN:]), q=q)


@router.get("/channels/{channel}")
async def channel(
    request: Request, channel: Channel, system: Known, visit: Annotated[Visit, visits("read")]
) -> Response:
    """One channel."""
    watch, held = await _looked(request), await _held(system, channel)
    return page(request, "channel.html", visit, view=_channel(system, watch.history, channel, held))


@router.get("/live/channels/{channel}")
async def channel_live(
    request: Request, channel: Channel, system: Known, visit: Annotated[Visit, visits("read")]
) -> Response:
    """The same, with every look."""
    watch, held = await _looked(request), await _held(system, channel)
    return live(
        system,
        visit.caller,
        watch,
        lambda: part("channel_live.html", view=_channel(system, watch.history, channel, held)),
    )


@router.get("/channels/{channel}/consumers/{consumer}")
async def consumer(
    request: Request,
    channel: Channel,
    consumer: Consumer,
    system: Known,
    visit: Annotated[Visit, visits("read")],
) -> Response:
    """One worker consumer."""
    watch = await _looked(request)
    view = await _consumer(system, watch.history, channel, consumer, visit.caller.right("read"))
    return page(request, "consumer.html", visit, view=view)


@router.post("/channels/{channel}/consumers/{consumer}/pause")
async def pause(
    channel: Channel,
    consumer: Consumer,
    system: Known,
    visit: Annotated[Visit, visits("operate")],
    paused: Annotated[bool, Form()],
) -> Response:
    """Stop handing out its jobs, or go on."""
    for store in await system.letters.stores():
        await store.set_paused(channel, consumer, paused)
    await system.audit.did(visit.caller.actor, "pause" if paused else "resume", f"{channel}/{consumer}")
    notice = "paused" if paused else "resumed"
    return RedirectResponse(f"/channels/{channel}/consumers/{consumer}?notice={notice}", 303)


async def _looked(request: Request) -> Watch:
    watch: Watch = request.app.state.watch
    if watch.history.latest is None:
        await watch.look()
    return watch


async def _held(system: System, channel: str) -> str | None:
    """What the last sweep said, on any store."""
    for store in await system.letters.stores():
        told = await get_report(store, system.config.namespace, SWEEPER)
        for each in told[1]["held"] if told is not None else ():
            if each["channel"] == channel:
                return str(each["consumer"])
    return None


def _channel(system: System, history: History, channel: str, held: str | None) -> ChannelView:
    figures = history.latest or Figures()
    if channel not in figures.channels:
        raise NotFound(f"there is no channel {channel}; the first publish makes it")
    workers = sorted((name, each) for (of, name), each in figures.workers.items() if of == channel)
    streams = sorted((name, each) for (of, name), each in figures.streams.items() if of == channel)
    return ChannelView(
        row=channel_row(history, figures, channel, [each for _, each in workers]),
        bytes=figures.channels[channel].bytes,
        now=figures.now,
        workers=[_worker(history, channel, name, each) for name, each in workers[:SHOWN]],
        streams=[
            StreamRow(name, each, history.series("lag", channel, name)) for name, each in streams[:SHOWN]
        ],
        left=len(workers[SHOWN:]) + len(streams[SHOWN:]),
        kept=kept(wiring.rules(system.config).keep(channel)),
        held=held,
    )


def _worker(history: History, channel: str, name: str, figures: WorkerFigures) -> WorkerRow:
    done = history.series("done", channel, name)
    return WorkerRow(name, figures, history.now("done", channel, name), done)


def kept(keep: Keep | None) -> str:
    """How a channel's log is kept, in words."""
    if keep is None or (keep.max_age is None and keep.max_bytes is None):
        return "for ever: no retention is configured"
    age = f"for {format_duration(keep.max_age)}" if keep.max_age is not None else "for ever"
    if keep.max_bytes is None:
        return age
    full = "refuses publishes" if keep.on_full == "refuse" else "drops the oldest"
    return f"{age}, up to {size(keep.max_bytes)}, then {full}"


async def _consumer(
    system: System, history: History, channel: str, consumer: str, right: Right
) -> ConsumerView:
    stored = await (await system.letters.store(0)).consumer(channel, consumer)
    figures = history.latest or Figures()
    mine = figures.workers.get((channel, consumer), WorkerFigures())
    return ConsumerView(
        channel=channel,
        row=_worker(history, channel, consumer, mine),
        now=figures.now,
        states=[(state.value, mine.states[state], TONES[state]) for state in STATES],
        share=_share(mine),
        waiting=history.series("waiting", channel, consumer),
        dead=history.series("dead", channel, consumer),
        policy=stored.policy.to_json(),
        clusters=await system.letters.clusters(channel, consumer, 5, right),
    )


def _share(figures: WorkerFigures) -> list[tuple[str, float, float]]:
    """The jobs by state as one bar."""
    total, at, found = sum(figures.states[state] for state in STATES), 0.0, []
    for state in STATES:
        width = 100 * figures.states[state] / total if total else 0.0
        found.append((TONES[state], at, width))
        at += width
    return found
