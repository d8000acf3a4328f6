"""Scripts: forgotten ones come back, and a batch in several parts is one batch."""

from __future__ import annotations

import asyncio
import re

import pytest
import redis

import holdfast
from holdfast.backends.redis import RedisBackend
from holdfast.backends.redis.session import SCRIPTS
from holdfast.model.event import Event
from holdfast.model.states import State
from kit import CHANNEL, claim, complete, publish, read_all, states, step, subscribe

LARGE = 6000


def batch(size: int = LARGE, start: int = 0) -> list[Event]:
    return [Event({"n": n}, f"e-{n}") for n in range(start, start + size)]


async def test_a_server_that_forgot_the_scripts_gets_them_again(
    backend: RedisBackend, client: redis.Redis
) -> None:
    await subscribe(backend)
    for turn in range(3):
        client.script_flush()
        await backend.log.publish(CHANNEL, batch(500, turn * 500))
        client.script_flush()
        jobs = await claim(backend, 500)
        client.script_flush()
        assert await backend.leases.complete(jobs) == [True] * 500
    assert await states(backend) == {State.DONE: 1500}


@pytest.mark.parametrize("size", [1, 201, 5000, LARGE])
async def test_a_batch_of_any_size_is_appended_once_and_delivered(backend: RedisBackend, size: int) -> None:
    await subscribe(backend)
    receipts = await backend.log.publish(CHANNEL, batch(size))
    again = await backend.log.publish(CHANNEL, batch(size))
    assert [(r.id, r.position, r.duplicate) for r in again] == [(r.id, r.position, True) for r in receipts]
    assert [entry.event.id for entry in await read_all(backend)] == [f"e-{n}" for n in range(size)]
    assert await states(backend) == {State.READY: size}
    seen = 0
    while jobs := await claim(backend, 1000):
        assert all(await backend.leases.complete(jobs))
        seen += len(jobs)
    assert seen == size


@pytest.mark.parametrize("where", [0, LARGE // 2, LARGE - 1])
async def test_a_large_batch_with_one_conflict_is_refused_whole(backend: RedisBackend, where: int) -> None:
    await backend.log.publish(CHANNEL, [Event("first", f"e-{where}")])
    with pytest.raises(holdfast.IdConflict) as caught:
        await backend.log.publish(CHANNEL, batch())
    assert caught.value.ids == (f"e-{where}",)
    assert len(await read_all(backend)) == 1


async def test_a_large_batch_for_a_full_consumer_is_refused_whole(backend: RedisBackend) -> None:
    await subscribe(backend, max_depth=LARGE)
    await backend.log.publish(CHANNEL, batch())
    with pytest.raises(holdfast.Overloaded):
        await backend.log.publish(CHANNEL, batch(start=LARGE))
    assert len(await read_all(backend)) == LARGE


async def test_a_large_batch_of_special_events_is_taken_up_in_the_steps_of_the_lifecycle(
    backend: RedisBackend,
) -> None:
    await subscribe(backend)
    await backend.log.publish(CHANNEL, batch(), priority=1)
    assert (await backend.lifecycle.due(500)).backfills, "it is left to pages"
    while (await step(backend)).backfilled:
        pass
    assert (await backend.lifecycle.due(500)).load == LARGE
    assert (await backend.lifecycle.due(500)).backfills == []


async def test_calls_of_many_tasks_share_a_connection_and_keep_their_answers(backend: RedisBackend) -> None:
    await subscribe(backend)
    receipts = await asyncio.gather(*(publish(backend, f"t-{n}") for n in range(300)))
    assert [r.id for [r] in receipts] == [f"t-{n}" for n in range(300)]
    jobs = [job for part in await asyncio.gather(*(claim(backend, 10) for _ in range(30))) for job in part]
    assert len({job.id for job in jobs}) == 300
    assert all(await asyncio.gather(*(complete(backend, job) for job in jobs)))


async def test_a_caller_that_goes_away_does_not_shift_the_answers(backend: RedisBackend) -> None:
    await subscribe(backend)
    for turn in range(20):
        gone = [asyncio.create_task(publish(backend, f"gone-{turn}-{n}")) for n in range(3)]
        await asyncio.sleep(0)
        for task in gone:
            task.cancel()
        [receipt] = await publish(backend, f"stays-{turn}")
        assert receipt.id == f"stays-{turn}"
        await asyncio.gather(*gone, return_exceptions=True)
    names = {entry.event.id for entry in await read_all(backend)}
    assert {f"stays-{turn}" for turn in range(20)} <= names


async def test_a_key_that_is_no_stream_is_refused_by_name(backend: RedisBackend, client: redis.Redis) -> None:
    client.hset("gbe:state:tasks", "a", "b")
    for verb in (
        backend.log.publish("gbe.state.tasks", [Event(1, "a")]),
        backend.channels.create("gbe.state.tasks"),
        backend.log.read("gbe.state.tasks", None, 10),
    ):
        with pytest.raises(holdfast.InvalidInput):
            await verb
    assert await backend.channels.names() == []


async def test_a_server_without_memory_refuses_and_appends_nothing(
    backend: RedisBackend, client: redis.Redis
) -> None:
    await subscribe(backend)
    await publish(backend, "a")
    client.config_set("maxmemory", 1)
    for size in (1, 1000):
        with pytest.raises(holdfast.Overloaded, match="maxmemory"):
            await backend.log.publish(CHANNEL, batch(size))
    [job] = await claim(backend)
    assert await complete(backend, job), "work that was taken can be finished"
    client.config_set("maxmemory", 0)
    assert [entry.event.id for entry in await read_all(backend)] == ["a"]


async def test_a_connection_has_no_transaction_to_join(backend: RedisBackend) -> None:
    assert not backend.capabilities.joins_transactions
    with pytest.raises(holdfast.InvalidInput, match="connection"):
        await backend.log.publish(CHANNEL, [Event(1, "a")], connection=object())


def test_a_script_has_no_function_that_nothing_behind_it_names() -> None:
    for name, script in SCRIPTS.items():
        for function in re.finditer(r"^local function (\w+)\(", script.text, re.MULTILINE):
            assert re.search(rf"\b{function[1]}\b", script.text[function.end() :]), (name, function[1])
