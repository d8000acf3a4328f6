"""The proxy itself, with plain clients of a real server."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Coroutine
from typing import Any

import pytest
import redis
import redis.asyncio
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from holdfast.embedded import Redis
from holdfast_chaos.proxy import Proxy
from kit import until

Raw = tuple[Proxy, redis.asyncio.Redis, redis.Redis]
SOON = 60.0


@pytest.mark.parametrize(
    ("url", "by_way"),
    [
        ("postgresql://me:secret@db:5432/orders?x=1", "postgresql://me:secret@127.0.0.1:{}/orders?x=1"),
        ("redis://:secret@cache:6379/2", "redis://:secret@127.0.0.1:{}/2"),
        ("nats://127.0.0.1:4222", "nats://127.0.0.1:{}"),
    ],
)
async def test_a_url_keeps_all_but_its_place(url: str, by_way: str) -> None:
    async with Proxy("127.0.0.1", 1) as proxy:
        assert proxy.url(url) == by_way.format(proxy.port)


@pytest.fixture
async def raw(redis_server: Redis) -> AsyncIterator[Raw]:
    """A proxy, a plain client through it, and one that goes around it."""
    async with Proxy("127.0.0.1", redis_server.port) as way:
        through = redis.asyncio.Redis.from_url(
            way.url(redis_server.url), socket_timeout=SOON, retry=Retry(NoBackoff(), 0)
        )
        with redis.Redis.from_url(redis_server.url) as around:
            around.delete("number")
            await through.incr("number")
            yield way, through, around
        await through.aclose()


async def no_answer(call: Awaitable[object]) -> None:
    """Nothing comes; on a machine that is slow to answer it is given up just as well."""
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.3):
            await call


async def test_when_replies_are_cut_the_server_has_done_it(raw: Raw) -> None:
    proxy, through, around = raw
    await proxy.cut_replies()
    await no_answer(through.incr("number"))

    async def done() -> bool:
        return around.get("number") == b"2"

    await until(done)


async def test_when_requests_are_cut_they_arrive_late_and_beside_their_repeats(raw: Raw) -> None:
    proxy, through, around = raw
    await proxy.cut_requests()
    await no_answer(through.incr("number"))
    assert around.get("number") == b"1"
    repeat = asyncio.create_task(through.incr("number"))
    await proxy.heal()
    await repeat

    async def both() -> bool:
        return around.get("number") == b"3"

    await until(both)


async def test_who_connects_during_a_cut_and_goes_again_never_reaches_the_server(raw: Raw) -> None:
    proxy, _, around = raw
    await proxy.cut()
    before = around.info("stats")["total_connections_received"]
    _, left = await asyncio.open_connection("127.0.0.1", proxy.port)
    left.write(b"INCR number\r\n")
    left.close()
    await left.wait_closed()
    reader, stays = await asyncio.open_connection("127.0.0.1", proxy.port)
    stays.write(b"PING\r\n")
    await proxy.heal()
    assert await reader.readline()
    assert around.info("stats")["total_connections_received"] == before + 1
    stays.close()


async def test_a_dropped_reply_is_a_reset_after_the_server_has_done_it(raw: Raw) -> None:
    proxy, through, around = raw
    await proxy.drop_reply()
    with pytest.raises(redis.exceptions.ConnectionError):
        await through.incr("number")
    assert (around.get("number"), proxy.dropped) == (b"2", 1)
    assert await through.incr("number") == 3


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
    url = proxy.url(redis_server.url)
    with (
        redis.Redis.from_url(url, socket_timeout=SOON, retry=None) as client,
        redis.Redis.from_url(url, socket_timeout=0.3, retry=None) as hasty,
    ):
        assert client.ping()
        there(proxy.cut())
        with pytest.raises(redis.exceptions.TimeoutError):
            hasty.ping()
        there(proxy.heal())
        assert client.ping()
    there(proxy.__aexit__())
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()
