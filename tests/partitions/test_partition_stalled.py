"""A store whose writes hang while its reads go on, as under a long lock: the other one's work goes on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import timedelta

import psycopg
import pytest
from spread import id_of, state_of, store

import holdfast
from holdfast.bus.heartbeat import Heartbeat
from holdfast.model.states import State
from kit import CHANNEL, CONSUMER, until

LIVES, STALLS = 0, 1
LEASE = timedelta(minutes=5)


@pytest.fixture
async def bus(urls: list[str], monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[holdfast.Bus]:
    """Nobody gives up waiting for the lock while a test runs."""
    monkeypatch.setattr("holdfast.backends.postgres.session.PATIENCE", 120.0)
    async with holdfast.connect(urls) as opened:
        await opened.subscribe(CHANNEL, CONSUMER)
        yield opened


@contextmanager
def stalled(url: str) -> Iterator[psycopg.Connection]:
    """No claim and no write of a job gets through in this store."""
    with psycopg.connect(url) as own:
        own.execute("LOCK TABLE holdfast.jobs IN EXCLUSIVE MODE")
        yield own


async def hangs(lock: psycopg.Connection) -> bool:
    """Whether somebody waits for the lock."""
    [(count,)] = lock.execute("SELECT count(*) FROM pg_locks WHERE NOT granted").fetchall()
    return bool(count)


@asynccontextmanager
async def at_work(app: holdfast.App, bus: holdfast.Bus) -> AsyncIterator[None]:
    stop = asyncio.Event()
    running = asyncio.create_task(app.run(bus, stop=stop, idle="100ms"))
    try:
        yield
    finally:
        stop.set()
        await asyncio.wait_for(running, 60)


async def test_answers_for_the_other_store_are_settled(bus: holdfast.Bus, urls: list[str]) -> None:
    app, begun = holdfast.App(), set[str]()
    stalls, lives = id_of(STALLS), id_of(LIVES)
    go = {name: asyncio.Event() for name in (stalls, lives)}

    @app.handler(CHANNEL, CONSUMER)
    async def work(event: holdfast.Event) -> None:
        begun.add(event.id)
        await go[event.id].wait()

    async def both_begun() -> bool:
        return begun == {stalls, lives}

    async def done() -> bool:
        return await state_of(bus, LIVES, lives) is State.DONE

    for name in go:
        await bus.publish(CHANNEL, {}, id=name)
    async with at_work(app, bus):
        await until(both_begun, 30)
        with stalled(urls[STALLS]) as lock:
            go[stalls].set()
            await until(lambda: hangs(lock), 30)
            go[lives].set()
            await until(done, 30)
    assert await state_of(bus, STALLS, stalls) is State.DONE


async def test_polls_of_the_other_store_go_on(bus: holdfast.Bus, urls: list[str]) -> None:
    app, seen = holdfast.App(), list[str]()
    names = [id_of(LIVES, number) for number in range(5)]

    @app.handler(CHANNEL, CONSUMER)
    async def work(event: holdfast.Event) -> None:
        seen.append(event.id)

    async with at_work(app, bus):
        with stalled(urls[STALLS]) as lock:
            await until(lambda: hangs(lock), 30)
            for name in names:
                await bus.publish(CHANNEL, {}, id=name)

                async def is_seen(name: str = name) -> bool:
                    return name in seen

                await until(is_seen, 30)
    assert seen == names


async def test_leases_of_the_other_store_are_extended(bus: holdfast.Bus, urls: list[str]) -> None:
    for index in (STALLS, LIVES):
        await bus.publish(CHANNEL, {}, id=id_of(index))
    jobs = await bus.poll(CHANNEL, CONSUMER, limit=2)
    jobs.sort(key=lambda job: job.partition, reverse=True)

    async def extended() -> bool:
        [found] = await store(bus, LIVES).leases.find_jobs(CHANNEL, "default", id_of(LIVES))
        assert found.lease_until is not None
        return found.lease_until > deadlines[-1] and not deadlines.append(found.lease_until)

    async with Heartbeat(bus, timedelta(milliseconds=150), asyncio.get_running_loop()) as heart:
        with stalled(urls[STALLS]) as lock:
            heart.watch(jobs, LEASE, lambda _: None)
            await until(lambda: hangs(lock), 30)
            deadlines = [next(job.lease_until for job in jobs if job.partition == LIVES)]
            for _ in range(3):
                await until(extended, 30)
