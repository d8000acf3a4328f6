"""Outages: the store goes away while a worker runs, and comes back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from itertools import count

import pytest
from shift import holds, shift

import holdfast
from holdfast.embedded import Postgres
from holdfast.model.job import JobRecord
from holdfast.model.states import State
from kit import CHANNEL, CONSUMER, until

SOON = 20.0
"""How soon after its return the store is in use again: well below any timeout of a connection."""
_numbers = count(1)


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    """A server of this file's own, to be killed. It is durable: what it answered must survive."""
    with Postgres() as started:
        yield started


@pytest.fixture
async def bus(server: Postgres) -> AsyncIterator[holdfast.Bus]:
    server.start()
    async with holdfast.connect(server.create_database(f"outage_{next(_numbers)}")) as opened:
        yield opened
        await asyncio.to_thread(server.start)


async def outage(server: Postgres) -> None:
    await asyncio.to_thread(server.kill)
    await asyncio.to_thread(server.start)


async def published(bus: holdfast.Bus, name: str) -> None:
    """Publish until the store takes it: while it is known to be away it refuses at once."""

    async def taken() -> holdfast.Receipt | None:
        try:
            return await bus.publish(CHANNEL, {}, id=name)
        except holdfast.Unavailable:
            return None

    await until(taken)


async def find(bus: holdfast.Bus, name: str) -> JobRecord | None:
    """The event's job, if the store answers."""
    try:
        [found] = await bus.find_jobs(CHANNEL, name)
    except (holdfast.Unavailable, ValueError):
        return None
    return found


async def done(bus: holdfast.Bus, name: str, patience: float = 60.0) -> JobRecord:
    async def is_done() -> JobRecord | None:
        found = await find(bus, name)
        return found if found is not None and found.state is State.DONE else None

    return await until(is_done, patience)


async def test_a_worker_outlives_its_store(bus: holdfast.Bus, server: Postgres) -> None:
    app, seen = holdfast.App(), list[str]()

    @app.handler(CHANNEL, CONSUMER, start="earliest")
    async def work(event: holdfast.Event) -> None:
        seen.append(event.id)

    async with shift(app, bus) as running:
        for name in ("before", "between", "after"):
            await published(bus, name)
            await holds(lambda name=name: name in seen)
            if name != "after":
                await outage(server)
        await done(bus, "after")
        assert not running.done()


async def test_an_answer_given_while_the_store_is_away_is_settled_when_it_returns(
    bus: holdfast.Bus, server: Postgres
) -> None:
    app, begun, go, runs = holdfast.App(), asyncio.Event(), asyncio.Event(), list[str]()

    @app.handler(CHANNEL, CONSUMER, lease="5m", start="earliest")
    async def work(event: holdfast.Event) -> None:
        runs.append(event.id)
        begun.set()
        await go.wait()

    await bus.publish(CHANNEL, {}, id="a")
    async with shift(app, bus):
        await begun.wait()
        await asyncio.to_thread(server.kill)
        go.set()
        await asyncio.to_thread(server.start)
        found = await done(bus, "a")
    assert (runs, found.attempts, found.token) == (["a"], 1, 1)


async def test_a_store_that_is_back_is_used_again_soon(bus: holdfast.Bus, server: Postgres) -> None:
    """Whoever waits for a connection must not sit out the whole timeout after the server has returned."""
    await bus.publish(CHANNEL, {}, id="before")
    await asyncio.to_thread(server.kill)
    waiting = asyncio.create_task(published(bus, "meanwhile"))
    await asyncio.to_thread(server.start)
    await asyncio.wait_for(waiting, SOON)


async def test_a_short_outage_does_not_cost_a_running_job_its_lease(
    bus: holdfast.Bus, server: Postgres
) -> None:
    app, begun, go = holdfast.App(), asyncio.Event(), asyncio.Event()

    @app.handler(CHANNEL, CONSUMER, lease="9s", start="earliest")
    async def work(event: holdfast.Event) -> None:
        begun.set()
        await go.wait()

    await bus.publish(CHANNEL, {}, id="a")
    async with shift(app, bus):
        await begun.wait()
        first = await find(bus, "a")
        assert first is not None
        assert first.lease_until is not None
        deadline = first.lease_until
        await outage(server)

        async def extended() -> bool:
            found = await find(bus, "a")
            return found is not None and found.lease_until is not None and found.lease_until > deadline

        await until(extended)
        go.set()
        found = await done(bus, "a")
    assert (found.abandonments, found.token) == (0, 1)


@pytest.mark.parametrize("signals", [1, pytest.param(2, marks=pytest.mark.slow)])
async def test_a_shutdown_ends_although_the_store_is_away(
    bus: holdfast.Bus, server: Postgres, signals: int
) -> None:
    """What could not be settled or released is taken back when its lease ends; the process must not hang."""
    app, begun, stop = holdfast.App(), asyncio.Event(), asyncio.Event()

    @app.handler(CHANNEL, CONSUMER, start="earliest")
    async def work(event: holdfast.Event) -> None:
        begun.set()
        await asyncio.Event().wait()

    await bus.publish(CHANNEL, {}, id="a")
    running = asyncio.create_task(app.run(bus, stop=stop, idle="100ms", grace="500ms"))
    await begun.wait()
    await asyncio.to_thread(server.kill)
    try:
        stop.set()
        if signals == 2:
            await asyncio.wait([running], timeout=0.2)
            running.cancel()
        ended, _ = await asyncio.wait([running], timeout=60)
        assert ended, "the app still waits for the store"
        assert running.cancelled() == (signals == 2), "only who is cancelled ends so"
    finally:
        await asyncio.to_thread(server.start)
        await asyncio.gather(running, return_exceptions=True)
