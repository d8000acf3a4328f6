"""The overview: the whole system at a glance."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from holdfast.model.job import State
from holdfast.server.pages.figures import Figures, WorkerFigures
from holdfast.server.pages.flow import Flow, flow
from holdfast.server.pages.history import History
from holdfast.server.pages.words import ago, count
from holdfast.server.supervisor import Kept, Phase

BUSIEST, WORST = 12, 20
"""How many channels, and things to look at, there is room for: a page does not grow with the system."""
LATE_EVENTS, LATE_SECONDS = 10_000, 3_600
TONES = {Phase.RUNNING: "good", Phase.STARTING: "calm", Phase.RESTARTING: "bad", Phase.STOPPED: "calm"}


@dataclass(frozen=True, slots=True)
class Attention:
    """Something that a person should look at."""

    title: str
    words: str
    href: str
    tone: str = "bad"


@dataclass(frozen=True, slots=True)
class PartRow:
    """One part of the process."""

    name: str
    phase: str
    status: str
    restarts: int
    tone: str


@dataclass(frozen=True, slots=True)
class ChannelRow:
    """One channel."""

    name: str
    rate: float
    values: list[float]
    events: int
    waiting: int
    dead: int


@dataclass(frozen=True, slots=True)
class Overview:
    """Everything that the page shows."""

    history: History
    flow: Flow
    parts: list[PartRow]
    attention: list[Attention]
    channels: list[ChannelRow]
    published: float
    done: float
    waiting: int
    dead: int


def overview(history: History, kept: list[Kept], archivers: set[str], ingesters: set[str]) -> Overview:
    """The page's content, from the last look and the parts."""
    figures = history.latest or Figures()
    rows = sorted(channel_rows(history), key=lambda row: (-row.rate, -row.waiting, row.name))
    names = list(figures.workers)
    return Overview(
        history=history,
        flow=flow(history, archivers, ingesters),
        parts=[PartRow(e.part.name, e.phase, e.status(), e.restarts, TONES[e.phase]) for e in kept],
        attention=list(islice(attention(figures, kept), WORST)),
        channels=rows[:BUSIEST],
        published=sum(history.now("published", channel) for channel in figures.channels),
        done=sum(history.now("done", *name) for name in names),
        waiting=sum(each.waiting for each in figures.workers.values()),
        dead=figures.dead(),
    )


def channel_rows(history: History) -> Iterator[ChannelRow]:
    """Every channel with what waits and what died on it."""
    figures, workers = history.latest or Figures(), defaultdict[str, list[WorkerFigures]](list)
    for (channel, _), worker in figures.workers.items():
        workers[channel].append(worker)
    for channel in figures.channels:
        yield channel_row(history, figures, channel, workers[channel])


def channel_row(history: History, figures: Figures, channel: str, workers: list[WorkerFigures]) -> ChannelRow:
    """One channel with its worker consumers."""
    return ChannelRow(
        channel,
        history.now("published", channel),
        history.series("published", channel),
        figures.channels[channel].events,
        sum(worker.waiting for worker in workers),
        sum(worker.states[State.DEAD] for worker in workers),
    )


def attention(figures: Figures, kept: list[Kept]) -> Iterator[Attention]:
    """What a person should look at, the worst first."""
    for reason in figures.unreachable:
        yield Attention("A store does not answer", reason, "/pipeline")
    for part in kept:
        if part.phase is Phase.RESTARTING:
            yield Attention(f"{part.part.name} is being restarted", part.reason, "/pipeline")
    worst = sorted(figures.workers.items(), key=lambda item: -item[1].states[State.DEAD])
    for (channel, consumer), worker in worst[:5]:
        if dead := worker.states[State.DEAD]:
            href = f"/deadletters?channel={channel}&consumer={consumer}"
            letters = "dead letter" if dead == 1 else "dead letters"
            yield Attention(f"{count(dead)} {letters}", f"{consumer} on {channel}", href)
    for (channel, consumer), stream in figures.streams.items():
        age = (figures.now - stream.oldest).total_seconds() if figures.now and stream.oldest else 0
        if stream.lag >= LATE_EVENTS or age >= LATE_SECONDS:
            words = f"{count(stream.lag)} events and {ago(stream.oldest, figures.now)} behind on {channel}"
            yield Attention(f"{consumer} is late", words, f"/channels/{channel}", "wait")
    for (channel, consumer), worker in figures.workers.items():
        if worker.paused:
            yield Attention(f"{consumer} is paused", f"on {channel}", f"/channels/{channel}", "wait")
