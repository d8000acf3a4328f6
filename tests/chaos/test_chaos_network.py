"""A faulty network between a real bus and each kind of real store: nothing hangs, doubles or stays broken."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from datetime import timedelta
from typing import Any, TypeVar
from urllib.parse import urlsplit

import nats
import pytest
import redis

import holdfast
from holdfast.backends.postgres import pool, session
from holdfast.bus.heartbeat import Heartbeat
from holdfast.embedded import Nats, Redis
from holdfast.model.states import State
from holdfast.wiring import backend as connect_backend
from holdfast_chaos.proxy import Proxy
from kit import CHANNEL, CONSUMER, LEASE, ids, publish, read_all, until

T = TypeVar("T")

SOON = 60.0
"""Nothing may hang for longer than this, nor need more to work again after a fault."""


DEALT = pytest.mark.parametrize(
    "url",
    ["redis", *(pytest.param(name, marks=pytest.mark.slow) for name in ("postgres", "nats"))],
    indirect=True,
)


@pytest.fixture(scope="module")
def redis_server() -> Iterator[Redis]:
    with Redis(appendfsync="no") as server:
        yield server


@pytest.fixture(scope="module")
def nats_server() -> Iterator[Nats]:
    with Nats(sync_interval="2m") as server:
        yield server


@pytest.fixture(params=["postgres", "redis", "nats"])
async def url(request: pytest.FixtureRequest) -> str:
    """An empty store of each kind."""
    if request.param == "postgres":
        database: str = request.getfixturevalue("database")
        return database
    server: Redis | Nats = request.getfixturevalue(f"{request.param}_server")
    if request.param == "redis":
        with redis.Redis.from_url(server.url) as client:
            client.flushall()
    else:
        async with await nats.connect(server.url) as plain:
            for each in await plain.jetstream().streams_info():
                await plain.jetstream().delete_stream(each.config.name or "")
    return server.url


@pytest.fixture
async def proxy(url: str) -> AsyncIterator[Proxy]:
    parts = urlsplit(url)
    async with Proxy(parts.hostname or "", parts.port or 0) as started:
        yield started


@pytest.fixture
async def patient(url: str, proxy: Proxy) -> AsyncIterator[holdfast.Bus]:
    """A bus by way of the proxy."""
    async with holdfast.connect(proxy.url(url)) as opened:
        await opened.subscribe(CHANNEL, CONSUMER)
        yield opened
        await proxy.heal()


@pytest.fixture
def _impatience(monkeypatch: pytest.MonkeyPatch) -> None:
    nats = ("nats.wire.connection", "nats.wire.batches")
    for module in ("postgres.session", "postgres.log", "redis.session", *nats):
        monkeypatch.setattr(f"holdfast.backends.{module}.PATIENCE", 1.0)
    monkeypatch.setattr("holdfast.bus.publish._PATIENCE", 0.5)
    monkeypatch.setitem(pool.ALERT, "connect_timeout", 2)


@pytest.fixture
def bus(_impatience: None, patient: holdfast.Bus) -> holdfast.Bus:
    """The same, which waits for less long than in real life."""
    return patient


async def logged(url: str) -> list[str]:
    """The ids in the store's log, read without the proxy."""
    direct = connect_backend(url)
    await direct.open()
    try:
        return [entry.event.id for entry in await read_all(direct)]
    finally:
        await direct.close()


async def eventually(call: Callable[[], Awaitable[T]]) -> T:
    """What the call answers, once it can."""
    deadline = time.monotonic() + SOON
    while True:
        try:
            return await call()
        except holdfast.Unavailable:
            assert time.monotonic() < deadline, "it does not recover"
            await asyncio.sleep(0.02)


async def unavailable(call: Awaitable[object]) -> None:
    """See that a call ends in time, with the one error of our tree that fits."""
    with pytest.raises(holdfast.Unavailable):
        await asyncio.wait_for(call, SOON)


async def work(bus: holdfast.Bus, name: str) -> None:
    """One event, from its publisher to the end of its job."""
    await eventually(lambda: bus.publish(CHANNEL, {}, id=name))
    found: list[str] = []
    while name not in found:
        jobs = await eventually(lambda: bus.poll(CHANNEL, CONSUMER, limit=10))
        for job in jobs:
            await bus.finalize(job, success=True)
        found += ids(jobs)


async def state_of(bus: holdfast.Bus, name: str) -> tuple[State, int]:
    [found] = await eventually(lambda: bus.find_jobs(CHANNEL, name))
    return found.state, found.attempts


async def test_a_publish_whose_reply_was_dropped_is_unknown_and_its_repeat_finds_it(
    url: str, proxy: Proxy
) -> None:
    client = connect_backend(proxy.url(url))
    await client.open()
    await publish(client, "first")  # so that the server knows our scripts, and we it
    await proxy.drop_reply(containing=b"the-event")
    await unavailable(publish(client, "the-event"))
    assert proxy.dropped == 1
    assert await logged(url) == ["first", "the-event"]
    [receipt] = await eventually(lambda: publish(client, "the-event"))
    assert receipt.duplicate
    assert await logged(url) == ["first", "the-event"]
    await client.close()


async def test_a_bus_asks_again_by_itself_when_replies_are_dropped(
    bus: holdfast.Bus, url: str, proxy: Proxy
) -> None:
    await proxy.drop_reply(2)
    await bus.publish(CHANNEL, {}, id="a")
    assert proxy.dropped == 2
    assert await logged(url) == ["a"]


@pytest.mark.parametrize("fault", ["cut_replies", pytest.param("cut_requests", marks=pytest.mark.slow)])
async def test_a_finalize_under_a_one_way_cut_is_unknown_and_counts_once(
    bus: holdfast.Bus, proxy: Proxy, fault: str
) -> None:
    await bus.publish(CHANNEL, {}, id="a")
    [job] = await bus.poll(CHANNEL, CONSUMER)
    await getattr(proxy, fault)()
    await unavailable(bus.finalize(job, success=True))
    await proxy.heal()
    try:
        await eventually(lambda: bus.finalize(job, success=True))
    except holdfast.LeaseLost:
        assert await state_of(bus, "a") == (State.DONE, 1), "the call that was not answered must have arrived"
    assert await state_of(bus, "a") == (State.DONE, 1)
    await asyncio.wait_for(work(bus, "b"), SOON)


async def test_after_a_cut_the_bus_works_again_by_itself_and_nothing_is_double(
    bus: holdfast.Bus, url: str, proxy: Proxy
) -> None:
    await bus.publish(CHANNEL, {}, id="before")
    await proxy.cut()
    await unavailable(bus.publish(CHANNEL, {}, id="during"))
    await unavailable(bus.poll(CHANNEL, CONSUMER))
    await proxy.heal()
    await asyncio.wait_for(work(bus, "during"), SOON)
    assert sorted(await logged(url)) == ["before", "during"]


@DEALT
async def test_a_bus_cannot_be_opened_through_a_cut_and_says_so(
    url: str, proxy: Proxy, bus: holdfast.Bus
) -> None:
    await proxy.cut()
    await unavailable(holdfast.connect(proxy.url(url)).__aenter__())


@pytest.mark.slow
async def test_a_bus_and_its_app_can_be_closed_during_a_cut(
    url: str, proxy: Proxy, bus: holdfast.Bus
) -> None:
    app, stop, at_work = holdfast.App(), asyncio.Event(), asyncio.Event()

    @app.handler(CHANNEL, CONSUMER, lease="1s")
    async def handle(event: holdfast.Event) -> None:
        at_work.set()
        await stop.wait()

    await bus.publish(CHANNEL, {}, id="a")
    other = holdfast.connect(proxy.url(url))
    await other.__aenter__()
    running = asyncio.create_task(app.run(other, stop=stop, grace="1s"))
    await asyncio.wait_for(at_work.wait(), SOON)
    await proxy.cut()
    stop.set()
    [outcome] = await asyncio.wait_for(asyncio.gather(running, return_exceptions=True), 2 * SOON)
    assert outcome is None or isinstance(outcome, holdfast.HoldfastError)
    await asyncio.wait_for(other.close(), SOON)
    await asyncio.wait_for(bus.close(), SOON)


async def test_refused_connections_are_an_error_at_once_and_over_when_healed(
    bus: holdfast.Bus, proxy: Proxy
) -> None:
    await proxy.refuse()
    await unavailable(bus.poll(CHANNEL, CONSUMER))
    await unavailable(bus.publish(CHANNEL, {}, id="a"))
    await proxy.heal()
    await asyncio.wait_for(work(bus, "a"), SOON)


async def test_a_batch_that_is_reset_half_way_stands_whole_and_once(
    bus: holdfast.Bus, url: str, proxy: Proxy
) -> None:
    names = [f"event-{number:04}" for number in range(300)]
    batch = [holdfast.Event({"filler": "x" * 100}, name) for name in names]
    await bus.publish(CHANNEL, {}, id="first")  # so that a connection is there
    await proxy.drip(40_000)
    publishing = asyncio.create_task(bus.publish_many(CHANNEL, batch))
    await asyncio.sleep(0.2)  # some of it is on its way; how much does not matter
    await proxy.reset()
    await proxy.heal()
    receipts = await asyncio.wait_for(publishing, SOON)
    assert [receipt.id for receipt in receipts] == names
    assert await logged(url) == ["first", *names]


@DEALT
async def test_latency_slows_calls_down_and_breaks_none(patient: holdfast.Bus, proxy: Proxy) -> None:
    await work(patient, "a")
    await proxy.delay(0.2)
    began = time.monotonic()
    await patient.publish(CHANNEL, {}, id="b")
    assert time.monotonic() - began >= 0.4
    [job] = await patient.poll(CHANNEL, CONSUMER)
    await patient.finalize(job, success=True)
    await proxy.heal()
    assert await state_of(patient, "b") == (State.DONE, 1)


@DEALT
async def test_a_slow_drip_slows_calls_down_and_breaks_none(patient: holdfast.Bus, proxy: Proxy) -> None:
    await work(patient, "a")
    await proxy.drip(30_000)
    began = time.monotonic()
    await patient.publish(CHANNEL, {"filler": "x" * 10_000}, id="b")
    assert time.monotonic() - began >= 0.3
    await proxy.heal()
    await asyncio.wait_for(work(patient, "c"), SOON)
    assert await state_of(patient, "b") == (State.DONE, 1)


@pytest.mark.usefixtures("_impatience")
async def test_a_connection_that_falls_silent_while_it_is_set_up_is_given_up(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = urlsplit(database)
    async with Proxy(parts.hostname or "", parts.port or 0) as way:
        set_up = session.Session._configure

        async def cut_and_set_up(self: session.Session, connection: pool.Connection) -> None:
            await way.cut()
            await set_up(self, connection)

        monkeypatch.setattr(session.Session, "_configure", cut_and_set_up)
        await unavailable(connect_backend(way.url(database)).open())


@DEALT
async def test_a_heartbeat_that_ends_while_its_store_is_silent_does_not_hold_the_loop_up(
    patient: holdfast.Bus, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    await patient.publish(CHANNEL, {}, id="a")
    [job] = await patient.poll(CHANNEL, CONSUMER)
    begun, answered = list[bool](), list[bool]()

    async def more_begun() -> bool:
        return len(begun) > len(answered) > 0

    async def some_answered() -> bool:
        return bool(answered)

    async with Heartbeat(patient, timedelta(milliseconds=300), asyncio.get_running_loop()) as heart:
        backend = patient.partitions.all[0].backend
        extend = backend.leases.extend

        async def spied(*arguments: Any) -> list[bool]:
            begun.append(True)
            answered.extend(accepted := await extend(*arguments))
            return accepted

        monkeypatch.setattr(backend.leases, "extend", spied)
        heart.watch([job], LEASE, lambda lost: None)
        await until(some_answered)
        await proxy.cut()
        await until(more_begun)
        healing = asyncio.create_task(proxy.heal())  # in the same loop, like the proxy itself
        began = time.monotonic()
    assert time.monotonic() - began < 20, "it took as long as the patience with a silent store"
    await healing


@DEALT
async def test_a_worker_goes_on_after_a_cut(bus: holdfast.Bus, url: str, proxy: Proxy) -> None:
    handled, app, stop = list[str](), holdfast.App(), asyncio.Event()

    # Short, since a claim that the cut held back arrives late, for nobody.
    @app.handler(CHANNEL, CONSUMER, lease="1s")
    async def handle(event: holdfast.Event) -> None:
        handled.append(event.id)

    async def has(name: str) -> bool:
        return name in handled

    async with holdfast.connect(proxy.url(url)) as other:
        running = asyncio.create_task(app.run(other, stop=stop, idle="100ms"))
        await bus.publish(CHANNEL, {}, id="before")
        await until(lambda: has("before"))
        await proxy.cut()
        await unavailable(bus.publish(CHANNEL, {}, id="during"))
        await proxy.heal()
        await eventually(lambda: bus.publish(CHANNEL, {}, id="during"))
        await until(lambda: has("during"), SOON)
        stop.set()
        await asyncio.wait_for(running, SOON)
    assert set(handled) == {"before", "during"}


async def test_the_server_may_die_and_come_back_behind_the_proxy() -> None:
    with Redis() as server:
        async with Proxy("127.0.0.1", server.port) as proxy, holdfast.connect(proxy.url(server.url)) as bus:
            await bus.subscribe(CHANNEL, CONSUMER)
            await work(bus, "a")
            await asyncio.to_thread(server.kill)
            await unavailable(bus.poll(CHANNEL, CONSUMER))
            await asyncio.to_thread(server.start)
            await asyncio.wait_for(work(bus, "b"), SOON)
