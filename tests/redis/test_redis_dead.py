"""Dead letters on Redis: counts while others move, and the end of a consumer."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import redis

from holdfast import failpoints
from holdfast.backends.redis import RedisBackend, deadletters
from holdfast.backends.redis.session import SCRIPTS
from holdfast.model.deadletters import DeadFilter, Drift
from holdfast.model.decide import describe
from holdfast.model.errors import TooLarge
from holdfast.model.event import Event
from holdfast.model.job import Burial, Failure, Job, Reason, Retry
from holdfast.model.states import State
from holdfast.model.upkeep import Lock
from kit import (
    BOOM,
    CHANNEL,
    CONSUMER,
    MINUTE,
    abandon,
    bury,
    claim,
    claim_one,
    complete,
    publish,
    record,
    subscribe,
)

OWNER = f"{CHANNEL}/{CONSUMER}"
LATER = describe("another error")


@pytest.fixture
async def lock(backend: RedisBackend) -> Lock:
    taken = await backend.locks.acquire("gbe:lock:sweeper", "me", 60 * MINUTE)
    assert taken is not None
    return taken


async def die(backend: RedisBackend, count: int, *, consumer: str = CONSUMER) -> list[Job]:
    """So many dead letters, all of one moment."""
    await backend.log.publish(CHANNEL, [Event(n, f"{consumer}-{n}") for n in range(count)])
    jobs = await claim(backend, count, consumer=consumer)
    assert all(await backend.leases.bury([Burial(job, Reason.TERMINAL, BOOM) for job in jobs]))
    return jobs


async def counted(backend: RedisBackend) -> tuple[dict[str, int], dict[str, int]]:
    """The store's counts by reason and by fingerprint."""
    counts = {each.reason: each.count for each in await backend.deadletters.counts()}
    return counts, {
        each.fingerprint: each.count for each in await backend.deadletters.clusters(None, None, 100)
    }


# counting anew


def between_pages(client: redis.Redis, *moves: tuple[str | int, ...]) -> Callable[[], object]:
    """Run these scripts once, while a recount stands between two of its pages."""
    left = list(moves)

    def move() -> None:
        while left:
            name, *arguments = left.pop(0)
            assert "0" not in str(client.eval(SCRIPTS[str(name)].text, 0, *arguments))

    return move


async def test_what_moves_between_two_pages_of_a_recount_is_counted_once(
    backend: RedisBackend, client: redis.Redis, lock: Lock
) -> None:
    await subscribe(backend)
    jobs = await die(backend, 1200)
    await publish(backend, "dies")
    held = await claim_one(backend)
    # Of one moment, the order is that of the ids as text, the last first: 500 of them make a page.
    order = sorted((job.id for job in jobs), reverse=True)
    behind, before = order[10:13], order[900:903]
    error = '{"error":"x"}'
    moves = between_pages(
        client,
        ("deadletters/purge", OWNER, behind[0], before[0]),
        ("deadletters/revive", OWNER, "", behind[1], before[1]),
        ("leases/bury", "held", OWNER, held.id, held.token, "crash_loop", error, LATER.fingerprint),
        ("leases/requeue", OWNER, order[499]),
    )
    with failpoints.active("dead.mid_recount", moves):
        assert await backend.deadletters.recount(False, lock) == []
    assert await counted(backend) == (
        {"terminal": 1195, "crash_loop": 1},
        {BOOM.fingerprint: 1195, LATER.fingerprint: 1},
    )


async def test_a_recount_that_was_cut_off_goes_on_and_is_exact(
    backend: RedisBackend, client: redis.Redis, lock: Lock
) -> None:
    await subscribe(backend)
    jobs = await die(backend, 700)
    client.hincrby("{holdfast}:counts:1", "dead:terminal", 5)
    with failpoints.active("dead.mid_recount", "raise"), pytest.raises(failpoints.FailpointError):
        await backend.deadletters.recount(False, lock)
    assert 0 < client.pttl("{holdfast}:recount:1") <= 3_600_000, "one that nobody ends is forgotten"
    await backend.deadletters.purge(CHANNEL, CONSUMER, [job.id for job in jobs[::7]])
    drift = Drift(CHANNEL, CONSUMER, "terminal", 605, 600)
    assert await backend.deadletters.recount(False, lock) == [drift]
    client.delete("{holdfast}:recount:1")
    assert await backend.deadletters.recount(False, lock) == [drift]


async def test_recounts_in_small_pages_are_exact_while_others_move(
    backend: RedisBackend, lock: Lock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deadletters, "_RECOUNT", 7)
    await subscribe(backend)
    await die(backend, 120)

    async def move(number: int) -> None:
        chance = random.Random(number)
        for _ in range(15):
            page = await backend.deadletters.page(DeadFilter(CHANNEL, CONSUMER), None, 120)
            dead = [each.record.id for each in page.letters]
            await backend.deadletters.revive(CHANNEL, CONSUMER, chance.sample(dead, len(dead) // 3))
            await backend.deadletters.purge(CHANNEL, CONSUMER, chance.sample(dead, len(dead) // 50))
            for job in await claim(backend, 20):
                assert await bury(backend, job, chance.choice([BOOM, LATER]))

    async with asyncio.TaskGroup() as group:
        movers = [group.create_task(move(number)) for number in range(3)]
        while not all(mover.done() for mover in movers):
            assert await backend.deadletters.recount(False, lock) == []
    assert await backend.deadletters.recount(False, lock) == []


async def test_a_repair_makes_every_count_right(
    backend: RedisBackend, client: redis.Redis, lock: Lock
) -> None:
    await subscribe(backend)
    jobs = await die(backend, 4)
    client.hset("{holdfast}:counts:1", mapping={"dead:terminal": 7, "dead:expired": 2, "dead": 9})
    client.zadd("{holdfast}:clusters:1", {BOOM.fingerprint: 3, "nobody has it": 2})
    client.zrem(f"{{holdfast}}:cluster:1:{BOOM.fingerprint}", jobs[0].id)
    wrong = [("expired", 2, 0), ("nobody has it", 2, 0), ("terminal", 7, 4)]
    found = [Drift(CHANNEL, CONSUMER, *each) for each in wrong]
    assert await backend.deadletters.recount(False, lock) == found
    assert await backend.deadletters.recount(True, lock) == found
    assert await backend.deadletters.recount(True, lock) == []
    assert await counted(backend) == ({"terminal": 4}, {BOOM.fingerprint: 4})
    assert (await backend.channels.consumer_stats(CHANNEL, CONSUMER)).states == {State.DEAD: 4}


# pages


async def test_a_page_of_many_consumers_is_in_one_order(backend: RedisBackend) -> None:
    names = [f"c-{n:02}" for n in range(12)]
    for name in names:
        await subscribe(backend, name)
    await publish(backend, *(f"e-{n}" for n in range(8)))
    held = {name: await claim(backend, consumer=name) for name in names}
    for number in range(8):
        for name in names[:: number % 3 + 1]:
            assert await bury(backend, held[name][number])
    everything, after = [], None
    while page := await backend.deadletters.page(DeadFilter(), after, 7):
        everything += [each.record for each in page.letters]
        after = page.after
        if after is None:
            break
    assert len(everything) == 12 * 3 + 6 * 3 + 4 * 2
    assert everything == sorted(everything, key=lambda each: str(each.ended_at), reverse=True)


async def test_a_patch_is_gone_when_the_job_is_done(backend: RedisBackend, client: redis.Redis) -> None:
    await subscribe(backend)
    done, purged = await die(backend, 2)
    assert await backend.deadletters.revive(CHANNEL, CONSUMER, [done.id, purged.id], b"patch") == [True, True]
    again = await claim(backend)
    assert [job.event.data for job in again] == [b"patch", b"patch"]
    assert await complete(backend, again[0])
    assert client.hget(f"{{holdfast}}:job:1:{purged.id}", "patch") == "patch"
    assert await bury(backend, again[1])
    assert await backend.deadletters.purge(CHANNEL, CONSUMER, [purged.id]) == [True]
    for job in (done, purged):
        assert client.hmget(f"{{holdfast}}:job:1:{job.id}", "patch", "entry") == [None, None]


async def test_no_more_than_a_thousand_move_in_one_step(backend: RedisBackend) -> None:
    await subscribe(backend)
    for verb in (backend.deadletters.revive, backend.deadletters.purge):
        with pytest.raises(TooLarge, match="1001"):
            await verb(CHANNEL, CONSUMER, ["1-0"] * 1001)


async def test_a_server_without_memory_lets_go_of_the_dead(
    backend: RedisBackend, client: redis.Redis
) -> None:
    await subscribe(backend)
    jobs = await die(backend, 10)
    client.config_set("maxmemory", 1)
    assert all(await backend.deadletters.purge(CHANNEL, CONSUMER, [job.id for job in jobs[:3]]))
    await remove(backend)
    assert of_the_consumer(client) == {}


# the end of a consumer


async def populate(backend: RedisBackend) -> None:
    """Jobs in every state, on an ordered consumer that holds keys of every kind."""
    await subscribe(backend, ordered=True, expires_after="1d")
    await backend.log.publish(CHANNEL, [Event(n, f"e-{n}", key=f"k-{n % 20}") for n in range(60)])
    jobs = await claim(backend, 20)
    assert all(await backend.leases.bury([Burial(job, Reason.TERMINAL, BOOM) for job in jobs[:5]]))
    assert all(await backend.leases.complete(jobs[5:10]))
    assert await backend.leases.retry([Retry(job, MINUTE, LATER) for job in jobs[10:13]])
    assert all(await backend.deadletters.purge(CHANNEL, CONSUMER, [job.id for job in jobs[:2]]))


def of_the_consumer(client: redis.Redis) -> dict[str, Any]:
    """Whatever is left of the first consumer."""
    left = {name: client.type(name) for name in client.scan_iter("{holdfast}:*:1")}
    left |= {name: client.type(name) for name in client.scan_iter("{holdfast}:*:1:*")}
    for name in ("lease", "schedule", "expiry"):
        members = [each for each in client.zrange(f"{{holdfast}}:due:{name}", 0, -1) if each.startswith("1:")]
        left |= {f"{name} {member}": "member" for member in members}
    return left


async def remove(backend: RedisBackend, limit: int = 7) -> int:
    steps = 1
    while not (await backend.channels.remove_consumer(CHANNEL, CONSUMER, limit)).done:
        steps += 1
    return steps


async def test_nothing_is_left_of_a_removed_consumer(backend: RedisBackend, client: redis.Redis) -> None:
    await populate(backend)
    await publish(backend, "other", channel="other")
    assert of_the_consumer(client)
    await remove(backend)
    assert of_the_consumer(client) == {}
    assert client.hlen("{holdfast}:removals") == 0
    assert int(client.hget("{holdfast}:store", "live") or 0) == 0
    assert all(client.pttl(name) > 0 for name in client.scan_iter("{holdfast}:event:*")), (
        "what kept an event's key for ever is gone"
    )


@pytest.mark.parametrize("point", ["remove.after_mark", "remove.after_step"])
async def test_a_removal_that_was_cut_off_is_ended_by_another(
    backend: RedisBackend, client: redis.Redis, point: str
) -> None:
    await populate(backend)
    with failpoints.active(point, "raise"), pytest.raises(failpoints.FailpointError):
        await backend.channels.remove_consumer(CHANNEL, CONSUMER, 7)
    assert await backend.channels.consumers() == []
    other = backend.fork()
    await other.open()
    await remove(other)
    await other.close()
    assert of_the_consumer(client) == {}


async def test_a_removal_finds_history_without_a_walk_through_the_server(
    backend: RedisBackend, client: redis.Redis
) -> None:
    await subscribe(backend)
    jobs = await die(backend, 600)
    assert all(await backend.deadletters.purge(CHANNEL, CONSUMER, [job.id for job in jobs]))
    await publish(backend, *(f"done-{n}" for n in range(600)))
    assert all(await backend.leases.complete(await claim(backend, 600)))
    for n in range(20_000):
        client.set(f"another:{n}", n)
    client.config_resetstat()
    assert await remove(backend, 1000)
    assert "cmdstat_scan" not in client.info("commandstats")
    assert of_the_consumer(client) == {}


async def test_a_spoilt_dead_letter_channel_or_log_stops_no_other_burial(
    backend: RedisBackend, client: redis.Redis
) -> None:
    await backend.channels.create("grave")
    await subscribe(backend, dead_letter="grave", max_abandonments=1)
    await subscribe(backend, "other", max_abandonments=1)
    await subscribe(backend, channel="gone", max_abandonments=1)
    await publish(backend, "a", "b")
    await publish(backend, "c", channel="gone")
    for consumer, channel in (("billing", CHANNEL), ("other", CHANNEL), ("billing", "gone")):
        await claim(backend, consumer=consumer, channel=channel)
    client.set("grave", "something else")
    client.delete("gone")
    client.set("gone", "something else")
    assert (await abandon(backend)).buried == 5
    assert {(each.channel, each.consumer): each.count for each in await backend.deadletters.counts()} == {
        (CHANNEL, "billing"): 2,
        (CHANNEL, "other"): 2,
        ("gone", "billing"): 1,
    }
    told, last = (await record(backend, "a")).errors
    assert "no copy went to channel grave" in told["error"]
    assert "without an answer" in last["error"]
    assert (await record(backend, "a", consumer="other")).errors == [last]


async def test_of_very_many_errors_the_first_and_the_latest_are_kept(
    backend: RedisBackend, client: redis.Redis
) -> None:
    await subscribe(backend, max_attempts="unlimited")
    await publish(backend, "a")
    for number in range(400):
        [accepted] = await backend.leases.retry(
            [Retry(await claim_one(backend), timedelta(0), Failure(f"{number} {'x' * 3_900}"))]
        )
        assert accepted
    kept = [int(each["error"].split()[0]) for each in (await record(backend, "a")).errors]
    assert kept[:4] == [0, 1, 2, 3]
    assert kept == sorted(set(kept))
    assert kept[-250:] == list(range(150, 400))
    assert len(kept) < 350
    assert await bury(backend, await claim_one(backend))
    assert (await record(backend, "a")).attempts == 401


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("how", ["remove", "cancel"])
async def test_what_came_back_after_its_event_was_trimmed_is_removed_and_cancelled(
    backend: RedisBackend, client: redis.Redis, lock: Lock, ordered: bool, how: str
) -> None:
    await subscribe(backend, ordered=ordered, expires_after="3d")
    await publish(backend, *"abc", key="k")
    jobs = []
    for _ in range(3):
        jobs.append(await claim_one(backend))
        assert await bury(backend, jobs[-1])
    await backend.advance(60 * MINUTE)
    assert (await backend.retention.trim(CHANNEL, await backend.now(), 100, lock)).removed == 3
    assert await backend.deadletters.revive(CHANNEL, CONSUMER, [job.id for job in jobs]) == [True] * 3
    await publish(backend, "d")
    assert (await backend.retention.trim(CHANNEL, await backend.now() + MINUTE, 100, lock)).removed == 0
    if how == "cancel":
        leased = await claim_one(backend)
        assert await backend.leases.cancel_waiting(CHANNEL, CONSUMER, 100) == 3
        assert await complete(backend, leased)
    else:
        removal = await backend.channels.remove_consumer(CHANNEL, CONSUMER, 100)
        assert (removal.jobs, removal.done) == (4, True)
        assert of_the_consumer(client) == {}
    assert (await backend.lifecycle.due(1)).load == 0


async def test_what_came_back_after_its_event_was_trimmed_does_not_hold_the_log(
    backend: RedisBackend, lock: Lock
) -> None:
    await subscribe(backend)
    [dead] = await die(backend, 1)
    await backend.advance(60 * MINUTE)
    assert (await backend.retention.trim(CHANNEL, await backend.now(), 100, lock)).removed == 1
    assert await backend.leases.requeue(CHANNEL, CONSUMER, dead.id)
    await publish(backend, "b")
    came_back, other = await claim(backend)
    assert came_back.id == dead.id
    assert await complete(backend, other)
    await backend.advance(60 * MINUTE)
    assert (await backend.retention.trim(CHANNEL, await backend.now(), 100, lock)).removed == 1
    assert await complete(backend, came_back)
