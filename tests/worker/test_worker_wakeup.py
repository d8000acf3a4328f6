"""Waking up: by NOTIFY, long before the idle poll; by polling alone where that is asked for."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from shift import ended, holds, shift

import holdfast
from holdfast.backends.postgres.leases import Leases
from holdfast.contracts import Backend
from holdfast.model.job import Retry
from holdfast.model.states import State
from kit import CHANNEL, CONSUMER, claim_one, publish, states, subscribe

IDLE = "1h"
SOON = 60.0
"""Far below the idle poll, and generous to a busy machine."""


@pytest.fixture(autouse=True)
def _an_idle_hour(monkeypatch: pytest.MonkeyPatch) -> None:
    """Allows an idle poll so late that whatever happens is not its doing."""
    monkeypatch.setattr("holdfast.bus.app.MAX_IDLE", timedelta(hours=1))


def noting_app() -> tuple[holdfast.App, list[str]]:
    app, seen = holdfast.App(), list[str]()

    @app.handler(CHANNEL, CONSUMER, start="earliest")
    async def note(event: holdfast.Event) -> None:
        seen.append(event.id)

    return app, seen


def listens(bus: holdfast.Bus) -> bool:
    return bool(bus.partitions.all[0].backend._session._pool.listens)  # type: ignore[attr-defined]


async def idle(bus: holdfast.Bus, backend: Backend, seen: list[str]) -> None:
    """Wait until the worker listens, has done a first job, and has nothing to do."""
    await holds(lambda: listens(bus))
    await bus.publish(CHANNEL, {}, id="first")
    await ended(backend, "first")
    assert seen == ["first"]


async def test_a_publish_wakes_an_idle_worker_long_before_its_next_poll(
    bus: holdfast.Bus, backend: Backend, database: str
) -> None:
    app, seen = noting_app()
    async with shift(app, bus, idle=IDLE):
        await idle(bus, backend, seen)
        await bus.publish(CHANNEL, {}, id="second")
        await holds(lambda: "second" in seen, SOON)


async def test_no_publish_of_a_burst_is_left_to_the_idle_poll(
    bus: holdfast.Bus, backend: Backend, database: str
) -> None:
    """Wake-ups are coalesced: the last event of a burst still brings one."""
    app, seen = noting_app()
    names = [f"e-{n}" for n in range(30)]
    async with shift(app, bus, idle=IDLE):
        await idle(bus, backend, seen)
        for name in names:
            await bus.publish(CHANNEL, {}, id=name)
        await holds(lambda: set(names) <= set(seen), SOON)
        await bus.publish_many(CHANNEL, [holdfast.Event({}, f"bulk-{n}") for n in range(300)])
        await holds(lambda: "bulk-299" in seen, SOON)


async def test_a_publish_by_sql_and_one_in_a_callers_transaction_wake_too(
    bus: holdfast.Bus, backend: Backend, database: str
) -> None:
    app, seen = noting_app()
    async with shift(app, bus, idle=IDLE):
        await idle(bus, backend, seen)
        async with await psycopg.AsyncConnection.connect(database) as own:
            await own.execute("SELECT holdfast.publish(%s, '{}', id => 'by-sql')", (CHANNEL,))
        await holds(lambda: "by-sql" in seen, SOON)
        async with await psycopg.AsyncConnection.connect(database) as own:
            await bus.publish(CHANNEL, {}, id="joined", connection=own)
            assert "joined" not in seen
        await holds(lambda: "joined" in seen, SOON)


@pytest.mark.parametrize("delay", [None, timedelta(0), timedelta(milliseconds=50)])
async def test_a_job_that_somebody_else_gives_back_wakes_an_idle_worker(
    bus: holdfast.Bus, backend: Backend, database: str, delay: timedelta | None
) -> None:
    app, seen = noting_app()
    await subscribe(backend)
    await publish(backend, "held")
    held = await claim_one(backend)
    async with shift(app, bus, idle=IDLE):
        await idle(bus, backend, seen)
        assert await backend.leases.retry([Retry(held, delay)]) == [True]
        await holds(lambda: "held" in seen, SOON)


async def test_a_poll_that_fails_after_a_wake_up_is_not_left_to_the_idle_poll(
    bus: holdfast.Bus, backend: Backend, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, seen = noting_app()
    claim = Leases.claim

    async with shift(app, bus, idle="1h"):
        await idle(bus, backend, seen)
        failures = [holdfast.Unavailable("gone for a moment")]

        async def claim_later(self: Leases, *options: Any) -> list[holdfast.Job]:
            if failures:
                raise failures.pop()
            return await claim(self, *options)

        monkeypatch.setattr(Leases, "claim", claim_later)
        await publish(backend, "second")
        await holds(lambda: "second" in seen, 30)


async def test_the_next_event_of_a_key_is_not_left_to_the_idle_poll(
    bus: holdfast.Bus, backend: Backend, database: str
) -> None:
    """It is held back while the one before it runs, so that polls meanwhile find nothing."""
    app, seen, go = holdfast.App(), list[str](), asyncio.Semaphore(0)

    @app.handler(CHANNEL, CONSUMER, start="earliest", ordered=True)
    async def work(event: holdfast.Event) -> None:
        seen.append(event.id)
        await go.acquire()

    names = [f"e-{n}" for n in range(4)]
    await subscribe(backend, ordered=True)
    await publish(backend, *names, key="k")
    async with shift(app, bus, idle="1h"):
        await holds(lambda: listens(bus))
        for number in range(1, 5):
            await holds(lambda number=number: seen == names[:number], 30)
            go.release()


async def test_an_event_of_another_channel_wakes_nobody(
    bus: holdfast.Bus, backend: Backend, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, seen = noting_app()
    polls: list[str] = []
    poll = holdfast.Bus.poll_at

    async def spy(self: holdfast.Bus, *whose: Any, limit: int) -> list[holdfast.Job]:
        polls.append(CHANNEL)
        return await poll(self, *whose, limit=limit)

    async with shift(app, bus, idle=IDLE):
        await idle(bus, backend, seen)
        monkeypatch.setattr(holdfast.Bus, "poll_at", spy)
        async with await psycopg.AsyncConnection.connect(database, autocommit=True) as own:
            await own.execute("LISTEN holdfast")
            await bus.publish("elsewhere", {}, id="x")
            async with asyncio.timeout(SOON):
                heard = await anext(own.notifies())
        assert heard.payload == "elsewhere"
        assert polls == []


async def test_polling_alone_delivers_without_listening(
    bus: holdfast.Bus, backend: Backend, database: str
) -> None:
    app, seen = noting_app()
    async with shift(app, bus, idle="50ms", listen=False):
        await subscribe(backend)
        for name in ("a", "b"):
            await bus.publish(CHANNEL, {}, id=name)
            await holds(lambda name=name: name in seen)
        assert not listens(bus)
    assert await states(backend) == {State.DONE: 2}
