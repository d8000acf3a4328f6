"""Two verbs on PostgreSQL, one of them stopped between its statements while the other commits.

Deterministic, where the other rounds depend on luck: for every point at which the first verb can be stopped
(see stops.py) there is a round in which the second one runs to its end right there, or until it waits for a
lock that the first one holds.
"""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import cast

import psycopg
from round_state import Kind, World
from rounds import Arena, Round, Task, told
from verbs import VERBS, Verb

import stops
from holdfast.backends.postgres import PostgresBackend
from holdfast_chaos.checks import Violation
from holdfast_chaos.final_state import ServerUnderTest
from holdfast_chaos.history import Call

KINDS = [Kind(ordered=False, bounded=True, bulk=True), Kind(ordered=True, bounded=True, bulk=False)]
"""Rows that are many jobs, and the order of keys: where statements depend on one another."""
_BULK = 210
"""Just enough for a bulk publish."""


class Stopped(Arena):
    """An arena in which the first verb of a round stops at one of its points."""

    stoppable: PostgresBackend
    point = 0
    was_reached = False

    async def at(self, round_: Round, point: int, seed: int) -> list[Violation] | None:
        """Play a round with a stop at this point; None where the first verb has no such point."""
        self.point = point
        violations = await self.play(round_, seed)
        return violations if self.was_reached else None

    async def everywhere(self, round_: Round, seed: int) -> AsyncIterator[tuple[int, list[Violation]]]:
        """Play a round for each point of the first verb."""
        for point in itertools.count(1):
            violations = await self.at(round_, point, seed)
            if violations is None:
                return
            yield point, violations

    async def _act(
        self, world: World, pair: tuple[Verb, Verb], seed: int
    ) -> tuple[list[Call], list[Violation]]:
        names = [verb.name for verb in pair]
        first, second = (
            side.perform(world, name, f"{name}-{number}", 1, seed)
            for number, (side, name) in enumerate(zip(self.sides, names, strict=True))
        )
        await stops.stop_at(self.stoppable, self.point)
        performances, self.was_reached = await stops.while_stopped(self.url, first, second)
        await stops.stop_at(self.stoppable, 0)
        return told(world, [pair, pair[::-1]], performances)


@asynccontextmanager
async def stopped_arena(store: ServerUnderTest) -> AsyncIterator[Stopped]:
    """An empty PostgreSQL with stopping points, and one actor for each of two verbs."""
    url = await store.empty()
    with psycopg.connect(url, autocommit=True) as connection:
        stops.install(connection)
    async with AsyncExitStack() as stack:
        backend, first, second = PostgresBackend(url, connections=2), Task(), Task()
        await backend.open()
        stack.push_async_callback(backend.close)
        for side in (first, second):
            await side.open(url)
            stack.push_async_callback(side.close)
        arena = Stopped(store, url, backend, [first, second], bulk=_BULK)
        arena.stoppable = cast(PostgresBackend, first.backend)
        yield arena


def rounds() -> Iterator[Round]:
    """Every ordered pair of verbs on each kind."""
    for first, second in itertools.product(VERBS, repeat=2):
        for kind in KINDS:
            yield Round(first, second, kind)
