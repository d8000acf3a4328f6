"""The flow: the picture of the whole system, with what runs through it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from holdfast.model.job import State
from holdfast.server.pages.figures import Figures
from holdfast.server.pages.history import History
from holdfast.server.pages.words import count, rate

WIDTH, HEIGHT = 176, 64
LATE = 10_000


@dataclass(frozen=True, slots=True)
class Node:
    """A box: where it stands, what it says, and where it leads."""

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
    """A way from box to box."""

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


def flow(history: History, archivers: set[str], ingesters: set[str]) -> Flow:
    """The picture of the last look."""
    figures = history.latest or Figures()
    nodes = {node.key: node for node in _nodes(history, figures, archivers, ingesters)}
    came, done = _sum(history, "published"), _sum(history, "done")
    moving = {"archive": _moves(history, archivers), "ingest": _moves(history, ingesters)}
    edges = [
        _edge(nodes["producers"], nodes["log"], came),
        _edge(nodes["log"], nodes["workers"], came if figures.workers else 0),
        _edge(nodes["workers"], nodes["done"], done),
        _edge(nodes["workers"], nodes["dead"], 0, "bad"),
        _edge(nodes["log"], nodes["archive"], moving["archive"]),
        _edge(nodes["archive"], nodes["objects"], moving["archive"]),
        _edge(nodes["log"], nodes["ingest"], moving["ingest"]),
        _edge(nodes["ingest"], nodes["warehouse"], moving["ingest"]),
        _edge(nodes["warehouse"], nodes["failed"], 0, "bad"),
    ]
    return Flow(list(nodes.values()), edges)


def _nodes(history: History, figures: Figures, archivers: set[str], ingesters: set[str]) -> Iterator[Node]:
    came, done = _sum(history, "published"), _sum(history, "done")
    leased = sum(each.states[State.LEASED] for each in figures.workers.values())
    waiting = sum(each.waiting for each in figures.workers.values())
    dead = figures.dead()
    yield Node("producers", "Producers", 0, 117, "/channels", rate(came), "events/s")
    events = sum(each.events for each in figures.channels.values())
    yield Node(
        "log", f"Log · {len(figures.channels)} channels", 236, 117, "/channels", count(events), "events"
    )
    yield Node(
        "workers", "Worker consumers", 472, 39, "/channels", count(waiting), f"wait, {count(leased)} run"
    )
    yield _stream("archive", "Archiver", 156, figures, archivers)
    yield _stream("ingest", "Ingest", 234, figures, ingesters)
    yield Node("done", "Done", 708, 0, "/channels", rate(done), "jobs/s")
    yield Node("dead", "Dead letters", 708, 78, "/deadletters", count(dead), "", "bad" if dead else "")
    yield Node("objects", "Cold storage", 708, 156, "/pipeline", "", "objects and manifests")
    yield Node("warehouse", "WAL → warehouse", 708, 234, "/pipeline", "", "effectively once")
    yield Node("failed", "Failed events", 944, 234, "/pipeline", "", "with their reasons")


def _stream(key: str, name: str, y: int, figures: Figures, consumers: set[str]) -> Node:
    mine = [each for (_, consumer), each in figures.streams.items() if consumer in consumers]
    if not mine:
        return Node(key, name, 472, y, "/pipeline", "", "not configured")
    lag = sum(each.lag for each in mine)
    return Node(key, name, 472, y, "/pipeline", count(lag), "events behind", "wait" if lag > LATE else "")


def _sum(history: History, kind: str) -> float:
    values = history.total(kind)[-5:]
    return sum(values) / len(values) if values else 0.0


def _moves(history: History, consumers: set[str]) -> float:
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
