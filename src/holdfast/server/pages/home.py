"""The home page: the whole system at a glance, with a picture of what runs through it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from fastapi import APIRouter, Request, Response

from holdfast.model.states import State
from holdfast.server.pages.formatting import ago, count, rate
from holdfast.server.pages.layout import PageReads, PageRoute, page, render
from holdfast.server.pages.live import SnapshotService, live_page, snapshots_of
from holdfast.server.pages.snapshot import Snapshot, SnapshotHistory, WorkerSnapshot
from holdfast.server.supervisor import Phase, Supervised
from holdfast.server.system import Known, System

router = APIRouter(route_class=PageRoute, include_in_schema=False)

WIDTH, HEIGHT = 176, 64
BUSIEST, WORST = 12, 20
"""How many channels, and things to look at, there is room for: a page does not grow with the system."""
LATE_EVENTS, LATE_SECONDS = 10_000, 3_600
TONES = {Phase.RUNNING: "good", Phase.STARTING: "calm", Phase.RESTARTING: "bad", Phase.STOPPED: "calm"}


@dataclass(frozen=True, slots=True)
class Node:
    """A box of the picture, with its text and its link."""

    key: str
    name: str
    x: int
    y: int
    href: str
    value: str = "–"
    unit: str = ""
    tone: str = ""


@dataclass(frozen=True, slots=True)
class Edge:
    """An arrow between two boxes."""

    path: str
    speed: str
    tone: str = ""


@dataclass(frozen=True, slots=True)
class Flow:
    """The whole picture, and the same in words."""

    nodes: list[Node]
    edges: list[Edge]

    @property
    def words(self) -> str:
        """For those who cannot see it."""
        return "; ".join(f"{node.name}: {node.value} {node.unit}".strip() for node in self.nodes)


def flow(history: SnapshotHistory, archivers: set[str], ingesters: set[str]) -> Flow:
    """The picture of the latest snapshot."""
    snapshot = history.latest or Snapshot()
    nodes = {node.key: node for node in _nodes(history, snapshot, archivers, ingesters)}
    came, done = _sum(history, "published"), _sum(history, "done")
    moving = {"archive": _moves(history, archivers), "ingest": _moves(history, ingesters)}
    edges = [
        _edge(nodes["producers"], nodes["log"], came),
        _edge(nodes["log"], nodes["workers"], came if snapshot.workers else 0),
        _edge(nodes["workers"], nodes["done"], done),
        _edge(nodes["workers"], nodes["dead"], 0, "bad"),
        _edge(nodes["log"], nodes["archive"], moving["archive"]),
        _edge(nodes["archive"], nodes["objects"], moving["archive"]),
        _edge(nodes["log"], nodes["ingest"], moving["ingest"]),
        _edge(nodes["ingest"], nodes["warehouse"], moving["ingest"]),
        _edge(nodes["warehouse"], nodes["failed"], 0, "bad"),
    ]
    return Flow(list(nodes.values()), edges)


def _nodes(
    history: SnapshotHistory, snapshot: Snapshot, archivers: set[str], ingesters: set[str]
) -> Iterator[Node]:
    came, done = _sum(history, "published"), _sum(history, "done")
    leased = sum(each.states[State.LEASED] for each in snapshot.workers.values())
    waiting = sum(each.waiting for each in snapshot.workers.values())
    dead = snapshot.dead()
    yield Node("producers", "Producers", 0, 117, "/channels", rate(came), "events/s")
    events = sum(each.events for each in snapshot.channels.values())
    yield Node(
        "log", f"Log · {len(snapshot.channels)} channels", 236, 117, "/channels", count(events), "events"
    )
    yield Node(
        "workers", "Worker consumers", 472, 39, "/channels", count(waiting), f"wait, {count(leased)} run"
    )
    yield _stream("archive", "Archiver", 156, snapshot, archivers)
    yield _stream("ingest", "Ingest", 234, snapshot, ingesters)
    yield Node("done", "Done", 708, 0, "/channels", rate(done), "jobs/s")
    yield Node("dead", "Dead letters", 708, 78, "/deadletters", count(dead), "", "bad" if dead else "")
    yield Node("objects", "Cold storage", 708, 156, "/pipeline", "", "objects and manifests")
    yield Node("warehouse", "WAL → warehouse", 708, 234, "/pipeline", "", "effectively once")
    yield Node("failed", "Failed events", 944, 234, "/pipeline", "", "with their reasons")


def _stream(key: str, name: str, y: int, snapshot: Snapshot, consumers: set[str]) -> Node:
    mine = [each for (_, consumer), each in snapshot.streams.items() if consumer in consumers]
    if not mine:
        return Node(key, name, 472, y, "/pipeline", "", "not configured")
    lag = sum(each.lag for each in mine)
    return Node(
        key, name, 472, y, "/pipeline", count(lag), "events behind", "wait" if lag > LATE_EVENTS else ""
    )


def _sum(history: SnapshotHistory, kind: str) -> float:
    values = history.total(kind)[-5:]
    return sum(values) / len(values) if values else 0.0


def _moves(history: SnapshotHistory, consumers: set[str]) -> float:
    """About how much a stream consumer reads: what came, less by how much its lag grew."""
    latest = history.latest
    if latest is None:
        return 0.0
    moved = 0.0
    for channel, consumer in latest.streams:
        if consumer in consumers:
            lags = history.series("lag", channel, consumer)[-5:]
            grown = (lags[-1] - lags[0]) / max(len(lags) - 1, 1) if lags else 0.0
            moved += max(history.now("published", channel) - grown, 0.0)
    return moved


def _edge(start: Node, end: Node, per_second: float, tone: str = "") -> Edge:
    x1, y1, x2, y2 = start.x + WIDTH, start.y + HEIGHT // 2, end.x, end.y + HEIGHT // 2
    bend = (x2 - x1) // 2
    speed = (
        "" if per_second <= 0 else "slow" if per_second < 10 else "fast" if per_second > 1_000 else "usual"
    )
    return Edge(f"M{x1} {y1} C{x1 + bend} {y1} {x2 - bend} {y2} {x2} {y2}", speed, tone)


@dataclass(frozen=True, slots=True)
class Attention:
    """Something that a person should look at."""

    title: str
    words: str
    href: str
    tone: str = "bad"


@dataclass(frozen=True, slots=True)
class ServiceRow:
    """One service of the process."""

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

    history: SnapshotHistory
    flow: Flow
    services: list[ServiceRow]
    attention: list[Attention]
    channels: list[ChannelRow]
    published: float
    done: float
    waiting: int
    dead: int


def overview(
    history: SnapshotHistory, services: list[Supervised], archivers: set[str], ingesters: set[str]
) -> Overview:
    """The page's content, from the latest snapshot and the services."""
    snapshot = history.latest or Snapshot()
    rows = sorted(channel_rows(history), key=lambda row: (-row.rate, -row.waiting, row.name))
    names = list(snapshot.workers)
    return Overview(
        history=history,
        flow=flow(history, archivers, ingesters),
        services=[
            ServiceRow(e.service.name, e.phase, e.status(), e.restarts, TONES[e.phase]) for e in services
        ],
        attention=list(islice(attention(snapshot, services), WORST)),
        channels=rows[:BUSIEST],
        published=sum(history.now("published", channel) for channel in snapshot.channels),
        done=sum(history.now("done", *name) for name in names),
        waiting=sum(each.waiting for each in snapshot.workers.values()),
        dead=snapshot.dead(),
    )


def channel_rows(history: SnapshotHistory) -> Iterator[ChannelRow]:
    """Every channel with what waits and what died on it."""
    snapshot, workers = history.latest or Snapshot(), defaultdict[str, list[WorkerSnapshot]](list)
    for (channel, _), worker in snapshot.workers.items():
        workers[channel].append(worker)
    for channel in snapshot.channels:
        yield channel_row(history, snapshot, channel, workers[channel])


def channel_row(
    history: SnapshotHistory, snapshot: Snapshot, channel: str, workers: list[WorkerSnapshot]
) -> ChannelRow:
    """One channel with its worker consumers."""
    return ChannelRow(
        channel,
        history.now("published", channel),
        history.series("published", channel),
        snapshot.channels[channel].events,
        sum(worker.waiting for worker in workers),
        sum(worker.states[State.DEAD] for worker in workers),
    )


def attention(snapshot: Snapshot, services: list[Supervised]) -> Iterator[Attention]:
    """What a person should look at, the worst first."""
    for reason in snapshot.unreachable:
        yield Attention("A store does not answer", reason, "/pipeline")
    for each in services:
        if each.phase is Phase.RESTARTING:
            yield Attention(f"{each.service.name} is being restarted", each.reason, "/pipeline")
    worst = sorted(snapshot.workers.items(), key=lambda item: -item[1].states[State.DEAD])
    for (channel, consumer), worker in worst[:5]:
        if dead := worker.states[State.DEAD]:
            href = f"/deadletters?channel={channel}&consumer={consumer}"
            letters = "dead letter" if dead == 1 else "dead letters"
            yield Attention(f"{count(dead)} {letters}", f"{consumer} on {channel}", href)
    for (channel, consumer), stream in snapshot.streams.items():
        age = (snapshot.now - stream.oldest).total_seconds() if snapshot.now and stream.oldest else 0
        if stream.lag >= LATE_EVENTS or age >= LATE_SECONDS:
            words = f"{count(stream.lag)} events and {ago(stream.oldest, snapshot.now)} behind on {channel}"
            yield Attention(f"{consumer} is late", words, f"/channels/{channel}", "wait")
    for (channel, consumer), worker in snapshot.workers.items():
        if worker.paused:
            yield Attention(f"{consumer} is paused", f"on {channel}", f"/channels/{channel}", "wait")


@router.get("/")
async def home(request: Request, system: Known, viewer: PageReads) -> Response:
    """The whole system at a glance."""
    snapshots = await snapshots_of(request)
    return page(request, "overview.html", viewer, overview=_overview(system, snapshots))


@router.get("/live/overview")
async def home_live(request: Request, system: Known, viewer: PageReads) -> Response:
    """The same, with every snapshot."""
    snapshots: SnapshotService = request.app.state.snapshots
    return live_page(
        system,
        viewer.caller,
        snapshots,
        lambda: render("overview_live.html", overview=_overview(system, snapshots)),
    )


def _overview(system: System, snapshots: SnapshotService) -> Overview:
    return overview(snapshots.history, system.supervisor.services, {"archiver"}, {"ingest"})
