"""What a contestant must do to be measured, and the contestants of each backend."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from importlib import import_module
from typing import ClassVar, Literal, Protocol, cast

Role = Literal["ours", "peer", "limit"]
OnEvent = Callable[[bytes | str], None]
"""The handler's whole body, the same for all: it gets the payload and never blocks."""


@dataclass(frozen=True)
class Counts:
    """What the store holds: `waiting` includes claimed work, `done` is finalized durably."""

    waiting: int
    done: int


class Gate(Protocol):
    """Holds a backlog back, so that workers can start, connect and ask, yet claim nothing."""

    async def waiting(self) -> int:
        """How many claims stand before the gate."""
        ...

    async def open(self) -> None: ...


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

    def hold(self) -> AbstractAsyncContextManager[Gate]: ...

    async def counts(self) -> Counts: ...

    async def work(self, on_event: OnEvent) -> None:
        """Run a worker with the contestant's best configuration until cancelled."""
        ...

    async def teardown(self) -> None: ...


BACKENDS: dict[str, dict[str, str]] = {
    "postgres": {
        "holdfast": "bench.contestants.holdfast_:Holdfast",
        "pgqueuer": "bench.contestants.pgqueuer_:PgQueuer",
        "procrastinate": "bench.contestants.procrastinate_:Procrastinate",
        "limit": "bench.contestants.limit:Limit",
    },
}


def load(target: str) -> type[Contestant]:
    """The class behind a `module:name`; imported only now, so that one missing peer stops nobody else."""
    module, name = target.split(":")
    return cast(type[Contestant], getattr(import_module(module), name))
