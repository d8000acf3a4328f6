"""Outages: a server that is killed keeps what it acknowledged, and one that comes back is recognised."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import pytest
import redis

import holdfast
from holdfast.backends.redis import RedisBackend
from holdfast.backends.redis.session import Session
from holdfast.embedded import Redis
from holdfast.model.event import Event, Receipt
from holdfast.model.states import State
from kit import CHANNEL, claim, claim_one, complete, publish, read_all, states, subscribe, until


async def test_a_killed_server_loses_nothing_that_was_acknowledged() -> None:
    with Redis(appendfsync="always") as server:
        backend = RedisBackend(server.url)
        await backend.open()
        await subscribe(backend)
        published: set[str] = set()
        completed: set[str] = set()

        async def producer(number: int) -> None:
            for turn in range(10_000):
                names = [f"{number}-{turn}-{n}" for n in range(turn % 40)]
                await publish(backend, *names)
                published.update(names)

        async def worker() -> None:
            while True:
                for job in await claim(backend, 20):
                    if await complete(backend, job):
                        completed.add(job.event.id)
                await asyncio.sleep(0)

        tasks = [asyncio.create_task(each) for each in (producer(0), producer(1), worker(), worker())]
        await asyncio.sleep(1.0)
        await asyncio.to_thread(server.kill)
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(outcome, holdfast.Unavailable) for outcome in outcomes), outcomes
        assert len(published) > 100
        assert len(completed) > 10
        await asyncio.to_thread(server.start)
        logged = [entry.event.id for entry in await read_all(backend)]
        assert published <= set(logged)
        assert len(logged) == len(set(logged))
        counts = await states(backend)
        assert sum(counts.values()) == len(logged), "each event has one job, in one state"
        assert counts[State.DONE] >= len(completed)
        for name in completed:
            [job] = await backend.leases.find_jobs(CHANNEL, "default", name)
            assert job.state is State.DONE
        await backend.close()


async def test_a_restarted_server_is_another_epoch_and_positions_go_on() -> None:
    with Redis(appendfsync="always") as server:
        backend = RedisBackend(server.url)
        await backend.open()
        await subscribe(backend)
        [old] = await publish(backend, "a")
        await asyncio.to_thread(server.restart)
        await asyncio.sleep(0.6)  # long enough for the connection to be looked at before it is used
        [new] = await publish(backend, "b")
        assert new.position.split("-")[0] > old.position.split("-")[0]
        assert [entry.position for entry in await read_all(backend)] == [old.position, new.position]
        assert [job.position for job in await claim(backend)] == [old.position, new.position]
        await backend.close()


async def test_a_connection_that_died_unused_is_renewed_without_an_error(
    backend: RedisBackend, client: redis.Redis
) -> None:
    await publish(backend, "a")
    for each in client.client_list():
        if each["lib-name"] if "lib-name" in each else each["cmd"] != "client":
            client.client_kill_filter(_id=each["id"], skipme=True)
    await asyncio.sleep(0.6)
    await publish(backend, "b")
    assert len(await read_all(backend)) == 2


async def test_every_call_into_an_outage_ends_and_later_ones_succeed() -> None:
    with Redis(appendfsync="no") as server:
        backend = RedisBackend(server.url)
        await backend.open()
        calls = [asyncio.create_task(backend.now()) for _ in range(50)]
        await asyncio.to_thread(server.kill)
        for _ in range(20):
            calls += [asyncio.create_task(publish(backend, f"{len(calls)}-{n}")) for n in range(10)]  # type: ignore[misc]
            await asyncio.sleep(0.005)
        async with asyncio.timeout(60):
            outcomes = await asyncio.gather(*calls, return_exceptions=True)
        failed = [outcome for outcome in outcomes if isinstance(outcome, Exception)]
        assert len(failed) >= 200
        assert {type(outcome) for outcome in failed} == {holdfast.Unavailable}
        await asyncio.to_thread(server.start)
        await publish(backend, "after")
        await backend.close()


async def test_a_server_that_stands_still_is_unavailable_and_comes_back() -> None:
    with Redis(appendfsync="no") as server:
        backend = RedisBackend(server.url + "?socket_timeout=0.5")
        await backend.open()
        server.pause()
        try:
            async with asyncio.timeout(60):
                with pytest.raises(holdfast.Unavailable):
                    await publish(backend, "a")
        finally:
            server.resume()

        async def back() -> list[Receipt]:
            with suppress(holdfast.Unavailable):
                return await publish(backend, "a")
            return []

        [receipt] = await until(back)
        assert [entry.position for entry in await read_all(backend)] == [receipt.position]
        await backend.close()


async def test_text_that_cannot_be_sent_leaves_the_connection_usable(backend: RedisBackend) -> None:
    for _ in range(8):
        with pytest.raises(holdfast.InvalidInput):
            await backend.log.read("\ud800", None, 10)
    await publish(backend, "a")
    assert len(await read_all(backend)) == 1


async def test_a_server_that_is_not_there_is_unavailable() -> None:
    backend = RedisBackend("redis://:secret-word@127.0.0.1:1/0")
    with pytest.raises(holdfast.Unavailable) as caught:
        await backend.open()
    assert "secret-word" not in str(caught.value)
    with pytest.raises(holdfast.Unavailable):
        await backend.now()
    await backend.close()


async def test_a_cursor_beyond_a_lost_tail_reads_what_was_written_since(
    backend: RedisBackend, client: redis.Redis
) -> None:
    """The newest entries are gone, and the next ones have lower ids than those had."""
    client.xadd(CHANNEL, {"data": "1"}, id="1000-0")
    client.xadd(CHANNEL, {"data": "2"}, id="9000-0")
    _, lost = await read_all(backend)
    client.delete(CHANNEL)
    client.xadd(CHANNEL, {"data": "1"}, id="1000-0")
    client.hset("{holdfast}:store", "run_id", "another server")
    reborn = backend.fork()
    await reborn.open()
    client.xadd(CHANNEL, {"data": "3"}, id="5000-0")
    [since] = await reborn.log.read(CHANNEL, lost.position, 10)
    assert (since.event.data, since.position > lost.position) == (b"3", True)
    await reborn.close()


async def test_a_store_of_a_newer_version_is_left_alone(backend: RedisBackend, client: redis.Redis) -> None:
    client.hset("{holdfast}:store", "schema", 99)
    newer = backend.fork()
    with pytest.raises(holdfast.HoldfastError, match="99"):
        await newer.open()


async def test_a_job_outlives_a_restart_with_its_lease() -> None:
    with Redis(appendfsync="always") as server:
        backend = RedisBackend(server.url)
        await backend.open()
        await subscribe(backend)
        await backend.log.publish(CHANNEL, [Event(1, "a")])
        job = await claim_one(backend)
        await asyncio.to_thread(server.kill)
        await asyncio.to_thread(server.start)
        again = backend.fork()
        await again.open()
        assert await complete(again, job)
        await again.close()
        await backend.close()


async def test_a_connection_that_closes_under_a_call_on_its_way_is_an_outage(redis_server: Redis) -> None:
    session = Session(redis_server.url, 1, None, None)
    await session.open()
    [link] = session._links
    connection: Any = link._connection
    send = connection.send_packed_command

    async def closed_meanwhile(command: Any) -> None:
        """As when the answer to another call ends the connection at this moment."""
        await connection.disconnect(nowait=True)
        await connection._send_packed_command(command)

    connection.send_packed_command = closed_meanwhile
    reading = link._receiver = asyncio.create_task(asyncio.Event().wait())  # has not noticed it yet
    with pytest.raises(holdfast.Unavailable):
        await session.call("PING")
    connection.send_packed_command = send
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)
    assert await session.call("PING")
    await session.close()
