"""The proxy, and a real bus that reaches each kind of real store through it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from typing import Any, TypeVar
from urllib.parse import urlsplit

import nats
import pytest
import redis

import holdfast
from holdfast.backends.postgres import pool
from holdfast.chaos.proxy import Proxy
from holdfast.embedded import Nats, Redis
from holdfast.model.job import State
from holdfast.wiring import backend as connect_backend
from kit import CHANNEL, CONSUMER, ids, publish, read_all, until

T = TypeVar("T")

SOON = 15.0
"""Nothing may hang for longer than this, nor need more to work again after a fault."""


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
async def bus(url: str, proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[holdfast.Bus]:
    """A bus by way of the proxy, less patient than in real life."""
    for module in ("postgres.session", "postgres.log", "redis.session", "nats.link", "nats.batch"):
        monkeypatch.setattr(f"holdfast.backends.{module}.PATIENCE", 1.0)
    monkeypatch.setitem(pool._OPTIONS, "connect_timeout", 2)
    async with holdfast.connect(proxy.url(url)) as opened:
        await opened.subscribe(CHANNEL, CONSUMER)
        yield opened
        await proxy.heal()


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
    await client.create_channel(CHANNEL)
    await proxy.drop_reply(containing=b"the-event")
    await unavailable(publish(client, "the-event"))
    assert proxy.dropped == 1
    assert await logged(url) == ["the-event"]
    [receipt] = await eventually(lambda: publish(client, "the-event"))
    assert receipt.duplicate
    assert await logged(url) == ["the-event"]
    await client.close()


async def test_a_bus_asks_again_by_itself_when_replies_are_dropped(
    bus: holdfast.Bus, url: str, proxy: Proxy
) -> None:
    await proxy.drop_reply(2)
    await bus.publish(CHANNEL, {}, id="a")
    assert proxy.dropped == 2
    assert await logged(url) == ["a"]


async def test_a_finalize_whose_answer_cannot_come_back_was_applied(bus: holdfast.Bus, proxy: Proxy) -> None:
    await bus.publish(CHANNEL, {}, id="a")
    [job] = await bus.poll(CHANNEL, CONSUMER)
    await proxy.cut_replies()
    await unavailable(bus.finalize(job, success=True))
    await proxy.heal()
    assert await state_of(bus, "a") == (State.DONE, 1)
    with pytest.raises(holdfast.LeaseLost):
        await bus.finalize(job, success=True)
    await asyncio.wait_for(work(bus, "b"), SOON)


async def test_a_finalize_that_does_not_reach_the_store_in_time_is_applied_late_or_again(
    bus: holdfast.Bus, proxy: Proxy
) -> None:
    await bus.publish(CHANNEL, {}, id="a")
    [job] = await bus.poll(CHANNEL, CONSUMER)
    await proxy.cut_requests()
    await unavailable(bus.finalize(job, success=True))
    await proxy.heal()
    try:
        await eventually(lambda: bus.finalize(job, success=True))
    except holdfast.LeaseLost:
        assert await state_of(bus, "a") == (State.DONE, 1), "the first call must have arrived"
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
    began = time.monotonic()
    await asyncio.wait_for(work(bus, "during"), SOON)
    assert time.monotonic() - began < SOON
    assert sorted(await logged(url)) == ["before", "during"]


async def test_a_bus_cannot_be_opened_through_a_cut_and_says_so(
    url: str, proxy: Proxy, bus: holdfast.Bus
) -> None:
    await proxy.cut()
    await unavailable(holdfast.connect(proxy.url(url)).__aenter__())


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


async def test_latency_slows_calls_down_and_breaks_none(bus: holdfast.Bus, proxy: Proxy) -> None:
    await work(bus, "a")
    await proxy.delay(0.2)
    began = time.monotonic()
    await bus.publish(CHANNEL, {}, id="b")
    assert time.monotonic() - began >= 0.4
    [job] = await bus.poll(CHANNEL, CONSUMER)
    await bus.finalize(job, success=True)
    await proxy.heal()
    assert await state_of(bus, "b") == (State.DONE, 1)


async def test_a_slow_drip_slows_calls_down_and_breaks_none(bus: holdfast.Bus, proxy: Proxy) -> None:
    await work(bus, "a")
    await proxy.drip(30_000)
    began = time.monotonic()
    await bus.publish(CHANNEL, {"filler": "x" * 10_000}, id="b")
    assert time.monotonic() - began >= 0.3
    await proxy.heal()
    await asyncio.wait_for(work(bus, "c"), SOON)
    assert await state_of(bus, "b") == (State.DONE, 1)


async def test_a_worker_goes_on_after_a_cut(bus: holdfast.Bus, url: str, proxy: Proxy) -> None:
    handled, app, stop = list[str](), holdfast.App(), asyncio.Event()

    @app.handler(CHANNEL, CONSUMER)
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
    assert sorted(handled) == ["before", "during"]


async def test_the_server_may_die_and_come_back_behind_the_proxy() -> None:
    with Redis() as server:
        async with Proxy("127.0.0.1", server.port) as proxy, holdfast.connect(proxy.url(server.url)) as bus:
            await bus.subscribe(CHANNEL, CONSUMER)
            await work(bus, "a")
            await asyncio.to_thread(server.kill)
            await unavailable(bus.poll(CHANNEL, CONSUMER))
            await asyncio.to_thread(server.start)
            await asyncio.wait_for(work(bus, "b"), SOON)


@pytest.mark.parametrize("fault", ["cut", "cut_replies", "refuse", "heal"])
async def test_no_task_is_left(redis_server: Redis, fault: str) -> None:
    before = asyncio.all_tasks()
    async with Proxy("127.0.0.1", redis_server.port) as proxy:
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        writer.write(b"PING\r\n")
        assert await reader.readline()
        await getattr(proxy, fault)()
        if fault != "refuse":
            writer.write(b"PING\r\n")
        late = asyncio.create_task(asyncio.open_connection("127.0.0.1", proxy.port))
        [outcome] = await asyncio.gather(late, return_exceptions=True)
        assert isinstance(outcome, ConnectionRefusedError) == (fault == "refuse")
    assert asyncio.all_tasks() == before
    writer.close()
    if not isinstance(outcome, BaseException):
        outcome[1].close()


def test_it_runs_in_the_loop_of_another_thread(redis_server: Redis) -> None:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    proxy = Proxy("127.0.0.1", redis_server.port)

    def there(call: Coroutine[Any, Any, object]) -> None:
        asyncio.run_coroutine_threadsafe(call, loop).result(SOON)

    there(proxy.__aenter__())
    with redis.Redis.from_url(proxy.url(redis_server.url), socket_timeout=0.3, retry=None) as client:
        assert client.ping()
        there(proxy.cut())
        with pytest.raises(redis.exceptions.TimeoutError):
            client.ping()
        there(proxy.heal())
        assert client.ping()
    there(proxy.__aexit__())
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()
