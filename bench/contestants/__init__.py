"""What a contestant must do to be measured, and the contestants of each store."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import ClassVar, Literal, Protocol, cast

Role = Literal["ours", "peer", "limit"]
OnEvent = Callable[[bytes | str], None]
"""The handler's whole body, the same for all: it gets the payload and never blocks."""


@dataclass(frozen=True)
class Counts:
    """What the store holds: `waiting` includes claimed work, `done` is finalized durably.

    `done` is None where the contestant keeps no trace of what is done.
    """

    waiting: int
    done: int | None

    def agrees(self, other: Counts) -> bool:
        """Whether both say the same, as far as both say anything."""
        return self.waiting == other.waiting and (None in (self.done, other.done) or self.done == other.done)


class Contestant(Protocol):
    """One queue on one empty store.

    The publishing side runs `setup`, publishes, and `teardown`; `work` runs in processes of its own,
    on a fresh object, without `setup`. Everything is durable when its call returns.
    """

    name: ClassVar[str]
    role: ClassVar[Role]

    def __init__(self, url: str) -> None: ...

    async def setup(self) -> None:
        """Create the schema and connect."""
        ...

    async def publish(self, payload: bytes) -> None:
        """One event, durable and announced to waiting workers."""
        ...

    async def publish_bulk(self, payloads: list[bytes]) -> None:
        """Many events through the best bulk interface that the contestant has."""
        ...

    async def counts(self) -> Counts: ...

    async def work(self, on_event: OnEvent) -> None:
        """Run a worker with the contestant's best configuration until cancelled.

        A peer that insists on the main thread may block the loop, if it stops at SIGTERM.
        """
        ...

    async def teardown(self) -> None: ...


class Joining(Contestant, Protocol):
    """A contestant that can publish over many connections at once: one object for each."""

    shared: ClassVar[bool]
    """Whether one object serves all publishers of a process at once."""

    async def join(self) -> None:
        """Connect to a store that another object has set up."""
        ...


CONTESTANTS: dict[str, dict[str, str]] = {
    "postgres": {
        "holdfast": "bench.contestants.holdfast_:Holdfast",
        "pgqueuer": "bench.contestants.pgqueuer_:PgQueuer",
        "procrastinate": "bench.contestants.procrastinate_:Procrastinate",
        "limit": "bench.contestants.limit_postgres:Limit",
    },
    "redis": {
        "holdfast": "bench.contestants.holdfast_:Holdfast",
        "dramatiq": "bench.contestants.dramatiq_:Dramatiq",
        "taskiq": "bench.contestants.taskiq_:Taskiq",
        "celery": "bench.contestants.celery_:Celery",
        "rq": "bench.contestants.rq_:Rq",
        "limit": "bench.contestants.limit_redis:Limit",
    },
    "nats": {
        "holdfast": "bench.contestants.holdfast_:Holdfast",
        "limit": "bench.contestants.limit_nats:Limit",
    },
}


def load(target: str) -> type[Contestant]:
    """The class behind a `module:name`; imported only now, so that one missing peer stops nobody else."""
    module, name = target.split(":")
    return cast(type[Contestant], getattr(import_module(module), name))
