"""Trimming: by age, in steps, never past a cursor, and only by the newest holder of the lock."""

from __future__ import annotations

import asyncio

import pytest
from sweeps import HOUR, Sweep, kept, locked, page_ids

from holdfast.contracts import Backend
from holdfast.model.errors import LockLost
from holdfast.model.upkeep import Hold, Trim
from kit import (
    CHANNEL,
    CONSUMER,
    MINUTE,
    claim,
    claim_one,
    complete,
    ids,
    publish,
    read_all,
    subscribe,
)


@pytest.fixture
async def trim(backend: Backend) -> Sweep:
    return Sweep(backend, await locked(backend))


async def test_only_what_is_older_than_the_limit_goes(backend: Backend, trim: Sweep) -> None:
    await publish(backend, "old-1", "old-2")
    await backend.advance(HOUR)
    border = await backend.now()
    await backend.advance(MINUTE)
    await publish(backend, "new")
    assert await trim(border) == Trim(2, more=False, hold=None)
    assert await kept(backend) == ["new"]
    assert await trim(border) == Trim(0, more=False, hold=None), "a repeat changes nothing"


async def test_nothing_is_old_enough(backend: Backend, trim: Sweep) -> None:
    border = await backend.now()
    await backend.advance(MINUTE)
    await publish(backend, "a", "b")
    assert await trim(border) == Trim(0, more=False, hold=None)
    assert await kept(backend) == ["a", "b"]


async def test_a_channel_that_is_empty_or_unknown_has_nothing_to_trim(backend: Backend, trim: Sweep) -> None:
    assert await trim() == Trim(0, more=False, hold=None)
    await backend.channels.create(CHANNEL)
    assert await trim() == Trim(0, more=False, hold=None)


@pytest.mark.parametrize("limit", [1, 7, 100, 1000])
async def test_the_limit_bounds_a_step_and_says_that_there_is_more(
    backend: Backend, trim: Sweep, limit: int
) -> None:
    names = [f"e-{n}" for n in range(250)]
    await publish(backend, *names)
    removed, more = 0, True
    while more and removed < 20 * limit:
        step = await trim(limit=limit)
        assert 0 < step.removed <= limit
        removed, more = removed + step.removed, step.more
        assert await kept(backend) == names[removed:], "the oldest go first, and the count is exact"
    assert more == (removed < 250)


async def test_with_the_limit_at_the_very_end_there_is_no_more(backend: Backend, trim: Sweep) -> None:
    await publish(backend, "a", "b", "c")
    assert await trim(limit=3) == Trim(3, more=False, hold=None)


async def test_what_follows_a_cursor_stays(backend: Backend, trim: Sweep) -> None:
    receipts = await publish(backend, "a", "b", "c", "d")
    await backend.cursors.attach(CHANNEL, "archiver")
    assert await trim() == Trim(0, more=False, hold=Hold("archiver", None))
    await backend.cursors.move(CHANNEL, "archiver", None, receipts[1].position)
    assert await trim() == Trim(2, more=False, hold=Hold("archiver", receipts[1].position))
    assert await kept(backend) == ["c", "d"]
    assert await trim() == Trim(0, more=False, hold=Hold("archiver", receipts[1].position))
    await backend.cursors.move(CHANNEL, "archiver", receipts[1].position, receipts[3].position)
    assert await trim() == Trim(2, more=False, hold=None)


async def test_the_slowest_of_several_holds_and_is_named(backend: Backend, trim: Sweep) -> None:
    receipts = await publish(backend, "a", "b", "c", "d")
    for name, place in (("fast", 3), ("slow", 0), ("middle", 1)):
        await backend.cursors.attach(CHANNEL, name)
        await backend.cursors.move(CHANNEL, name, None, receipts[place].position)
    assert await trim() == Trim(1, more=False, hold=Hold("slow", receipts[0].position))
    assert await trim(ignore=["slow"]) == Trim(1, more=False, hold=Hold("middle", receipts[1].position))
    assert await trim(ignore=["slow", "middle"]) == Trim(2, more=False, hold=None)


async def test_a_consumer_that_needs_only_young_events_holds_nothing(backend: Backend, trim: Sweep) -> None:
    receipts = await publish(backend, "a", "b")
    await backend.cursors.attach(CHANNEL, "archiver", start="latest")
    await backend.advance(HOUR)
    border = await backend.now()
    await backend.advance(MINUTE)
    await publish(backend, "c")
    assert await trim(border) == Trim(2, more=False, hold=None)
    assert await kept(backend) == ["c"]
    assert (await backend.log.extent(CHANNEL)).trimmed == receipts[1].position


async def test_a_step_that_the_limit_cut_is_followed_by_one_that_tells_who_holds(
    backend: Backend, trim: Sweep
) -> None:
    receipts = await publish(backend, "a", "b", "c", "d")
    await backend.cursors.attach(CHANNEL, "archiver")
    await backend.cursors.move(CHANNEL, "archiver", None, receipts[2].position)
    step = await trim(limit=2)
    assert (step.removed, step.more) == (2, True)
    assert await trim(limit=2) == Trim(1, more=False, hold=Hold("archiver", receipts[2].position))


async def test_what_is_detached_holds_nothing(backend: Backend, trim: Sweep) -> None:
    await publish(backend, "a")
    await backend.cursors.attach(CHANNEL, "archiver")
    assert (await trim()).removed == 0
    assert await backend.cursors.detach(CHANNEL, "archiver")
    assert (await trim()).removed == 1


async def test_cursors_of_other_channels_hold_nothing_here(backend: Backend, trim: Sweep) -> None:
    await backend.cursors.attach("elsewhere", "archiver")
    await subscribe(backend, channel="elsewhere")
    await publish(backend, "x", channel="elsewhere")
    await publish(backend, "a")
    assert await trim() == Trim(1, more=False, hold=None)
    assert len(await read_all(backend, "elsewhere")) == 1


async def test_a_stream_consumer_of_the_same_name_as_a_worker_is_ignored_alone(
    backend: Backend, trim: Sweep
) -> None:
    await subscribe(backend)
    await backend.cursors.attach(CHANNEL, CONSUMER)
    await publish(backend, "a")
    assert await trim(ignore=[CONSUMER]) == Trim(0, more=False, hold=Hold(CONSUMER, None))
    assert await complete(backend, await claim_one(backend))
    assert await trim(ignore=[CONSUMER]) == Trim(1, more=False, hold=None)


async def test_a_holder_from_the_past_is_refused(backend: Backend) -> None:
    old = await locked(backend, "one")
    await publish(backend, "a")
    now = await backend.now()
    await backend.advance(2 * HOUR)
    assert (await backend.retention.trim(CHANNEL, now, 1, old)).removed <= 1, (
        "its deadline passed, and nobody else came"
    )
    new = await locked(backend, "two")
    assert new.token > old.token
    await publish(backend, "b")
    await backend.advance(MINUTE)
    now = await backend.now()
    for verb in (
        backend.retention.trim(CHANNEL, now, 10, old),
        backend.retention.purge_dead(CHANNEL, now, 10, old),
        backend.retention.forget(now, now, 10, old),
    ):
        with pytest.raises(LockLost):
            await verb
    assert "b" in await kept(backend)
    assert (await backend.retention.trim(CHANNEL, now, 10, new)).removed >= 1


async def test_trimming_while_others_publish_and_work_loses_nothing(backend: Backend, trim: Sweep) -> None:
    await subscribe(backend)
    await backend.cursors.attach(CHANNEL, "archiver")
    names = [f"e-{n}" for n in range(400)]
    worked: list[str] = []
    archived: list[str] = []

    async def produce() -> None:
        for start in range(0, 400, 20):
            await publish(backend, *names[start : start + 20])

    async def work() -> None:
        while len(worked) < 400:
            jobs = await claim(backend, 15)
            worked.extend(ids(jobs))
            assert all(await backend.leases.complete(jobs))

    async def archive() -> None:
        cursor = None
        while len(archived) < 400:
            if (last := (await backend.log.extent(CHANNEL)).last) is None or last == cursor:
                await asyncio.sleep(0)
                continue
            archived.extend(await page_ids(backend, cursor, last))
            assert await backend.cursors.move(CHANNEL, "archiver", cursor, last)
            cursor = last

    removed = 0

    async def sweep() -> None:
        nonlocal removed
        while removed < 400:
            removed += (await trim(limit=30)).removed
            await asyncio.sleep(0)

    await asyncio.wait_for(asyncio.gather(produce(), work(), archive(), sweep()), 60)
    assert (worked, archived, removed) == (names, names, 400)
    assert await kept(backend) == []
