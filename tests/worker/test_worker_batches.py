"""Batches: what makes the runtime fast is that it asks the store seldom, and for much."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from shift import holds, settled, shift

import holdfast
from holdfast.backends.postgres.leases import Leases
from holdfast.contracts import Backend
from holdfast.model.states import State
from kit import CHANNEL, CONSUMER, publish, states, subscribe, until

JOBS = 1000


@pytest.fixture
def statements(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each verb was asked of the store."""
    asked: Counter[str] = Counter()

    def counted(verb: str, ask: Callable[..., Any]) -> Callable[..., Any]:
        async def call(self: Leases, *options: Any) -> Any:
            asked[verb] += 1
            return await ask(self, *options)

        return call

    for verb in ("claim", "complete", "retry", "bury"):
        monkeypatch.setattr(Leases, verb, counted(verb, getattr(Leases, verb)))
    return asked


@pytest.mark.parametrize("plain", [False, True])
async def test_quick_jobs_are_leased_and_completed_many_at_a_time(
    bus: holdfast.Bus, backend: Backend, statements: Counter[str], plain: bool
) -> None:
    app = holdfast.App()

    async def work(event: holdfast.Event) -> None:
        return

    def work_plain(event: holdfast.Event) -> None:
        return

    app.handler(CHANNEL, CONSUMER, start="earliest")(work_plain if plain else work)
    await subscribe(backend)
    await publish(backend, *(f"e-{n}" for n in range(JOBS)))
    async with shift(app, bus):
        assert await settled(backend, JOBS) == {State.DONE: JOBS}
        assert statements["complete"] <= JOBS / 5
        assert statements["claim"] <= JOBS / 10


async def test_the_event_loop_goes_round_while_quick_jobs_run(bus: holdfast.Bus, backend: Backend) -> None:
    """However many may run at once: else the next claim waits for all that was leased before it."""
    app, handled, between = holdfast.App(), 0, list[int]()

    @app.handler(CHANNEL, CONSUMER, concurrency=20, start="earliest")
    async def work(event: holdfast.Event) -> None:
        nonlocal handled
        handled += 1

    async def look() -> None:
        while handled < JOBS:
            before = handled
            await asyncio.sleep(0)
            between.append(handled - before)

    await subscribe(backend)
    await publish(backend, *(f"e-{n}" for n in range(JOBS)))
    looking = asyncio.create_task(look())
    async with shift(app, bus):
        await settled(backend, JOBS)
    await looking
    assert sum(between) == JOBS
    assert max(between) <= 2 * 64


async def test_failures_are_settled_many_at_a_time_too(
    bus: holdfast.Bus, backend: Backend, statements: Counter[str]
) -> None:
    app = holdfast.App()

    @app.handler(CHANNEL, CONSUMER, max_attempts=2, backoff=["0s"], start="earliest")
    async def fail(event: holdfast.Event) -> None:
        raise RuntimeError("no")

    await subscribe(backend)
    await publish(backend, *(f"e-{n}" for n in range(JOBS)))
    async with shift(app, bus):
        assert await settled(backend, JOBS) == {State.DEAD: JOBS}
    assert statements["retry"] + statements["bury"] <= JOBS / 5


async def test_slow_handlers_lease_little_ahead(bus: holdfast.Bus, backend: Backend) -> None:
    """A job that waits in one process cannot be worked on by another."""
    app, go, begun, concurrency = holdfast.App(), asyncio.Event(), list[str](), 2

    @app.handler(CHANNEL, CONSUMER, concurrency=concurrency, start="earliest")
    async def wait(event: holdfast.Event) -> None:
        begun.append(event.id)
        await go.wait()

    await subscribe(backend)
    await publish(backend, *(f"e-{n}" for n in range(JOBS)))
    async with shift(app, bus):
        await holds(lambda: len(begun) == concurrency)
        leased: list[int] = []

        async def no_longer_grows() -> bool:
            leased.append((await states(backend)).get(State.LEASED, 0))
            await asyncio.sleep(0.1)
            return len(leased) > 5 and len(set(leased[-5:])) == 1

        await until(no_longer_grows)
        ready = (await states(backend)).get(State.READY, 0)
        go.set()
        await settled(backend, JOBS)
    assert ready == JOBS - leased[-1]
    assert concurrency <= leased[-1] <= 10 * concurrency


async def test_a_fixed_prefetch_is_kept(bus: holdfast.Bus, backend: Backend) -> None:
    app, go, begun = holdfast.App(), asyncio.Event(), list[str]()

    @app.handler(CHANNEL, CONSUMER, concurrency=1, prefetch=5, start="earliest")
    async def wait(event: holdfast.Event) -> None:
        begun.append(event.id)
        await go.wait()

    await subscribe(backend)
    await publish(backend, *(f"e-{n}" for n in range(50)))
    async with shift(app, bus):

        async def enough() -> bool:
            return (await states(backend)).get(State.LEASED, 0) >= 5

        await until(enough)
        most = (await states(backend))[State.LEASED]
        go.set()
        await settled(backend, 50)
    assert most <= 1 + 5
