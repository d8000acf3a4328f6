"""Foreign groups: other software's readers are seen, helped, and removed once nobody of them is left."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
import redis

from holdfast.backends.redis import RedisBackend
from holdfast.model.errors import LockLost
from holdfast.model.upkeep import Group, Lock
from holdfast.upkeep.announcements import Alert
from holdfast.upkeep.rules import DeadConsumers, Rules
from holdfast.upkeep.sweeper import Sweeper
from kit import CHANNEL, MINUTE, publish, read_all, until

ALIVE = timedelta(seconds=1)
LONG = timedelta(hours=1)


@pytest.fixture
async def lock(backend: RedisBackend) -> Lock:
    taken = await backend.locks.acquire("gbe:lock:sweeper", "me", LONG)
    assert taken is not None
    return taken


def read(client: redis.Redis, member: str, count: int = 100) -> list[str]:
    answer = client.xreadgroup("mail", member, {CHANNEL: ">"}, count=count)
    return [entry for _, entries in answer for entry, _ in entries]


def appear(client: redis.Redis, member: str) -> None:
    """A sign of life that takes nothing."""
    client.xreadgroup("mail", member, {CHANNEL: "0"})


async def only(backend: RedisBackend, alive: timedelta = LONG) -> Group:
    [group] = await backend.groups.all(alive)
    return group


async def all_idle(backend: RedisBackend) -> bool:
    idle = (await only(backend)).idle
    return idle is not None and idle > ALIVE


async def test_we_have_no_groups_of_our_own(backend: RedisBackend) -> None:
    assert backend.capabilities.foreign_groups
    await publish(backend, "a")
    await backend.cursors.attach(CHANNEL, "archiver")
    assert await backend.groups.all(LONG) == []


async def test_a_group_is_described(backend: RedisBackend, client: redis.Redis) -> None:
    receipts = await publish(backend, "a", "b", "c")
    await publish(backend, "x", channel="elsewhere")
    client.xgroup_create(CHANNEL, "mail", id="0")
    assert await only(backend) == Group(CHANNEL, "mail", 0, None, 0, 0, None)
    read(client, "m-1", 2)
    group = await only(backend)
    assert (group.members, group.pending, group.stale) == (1, 2, 0)
    assert group.delivered == receipts[1].position
    assert group.idle is not None
    assert group.idle < LONG
    await until(lambda: all_idle(backend))
    group = await only(backend, ALIVE)
    assert (group.members, group.pending, group.stale) == (0, 2, 2)


async def test_what_a_member_left_behind_goes_to_one_that_lives(
    backend: RedisBackend, client: redis.Redis, lock: Lock
) -> None:
    await publish(backend, *(f"e-{n}" for n in range(10)))
    client.xgroup_create(CHANNEL, "mail", id="0")
    left = read(client, "gone", 7)
    own = read(client, "slow", 2)
    await until(lambda: all_idle(backend))
    assert await backend.groups.reclaim(await only(backend), ALIVE, 100, lock) == 0, (
        "nobody is there to take it"
    )
    own += read(client, "slow")
    assert len(own) == 3
    group = await only(backend, ALIVE)
    assert (group.members, group.stale) == (1, 7)
    assert await backend.groups.reclaim(group, ALIVE, 5, lock) == 5
    assert await backend.groups.reclaim(group, ALIVE, 5, lock) == 2
    assert await backend.groups.reclaim(group, ALIVE, 5, lock) == 0
    pending = client.xpending_range(CHANNEL, "mail", "-", "+", 100)
    assert [(each["message_id"], each["consumer"]) for each in pending] == [(e, "slow") for e in left + own]
    assert {each["times_delivered"] for each in pending} == {1}, "a handover is no delivery"
    [(_, again)] = client.xreadgroup("mail", "slow", {CHANNEL: "0"})
    assert [entry for entry, _ in again] == left + own


async def test_a_living_member_keeps_its_own_entries_however_long_it_holds_them(
    backend: RedisBackend, client: redis.Redis, lock: Lock
) -> None:
    await publish(backend, "a", "b")
    client.xgroup_create(CHANNEL, "mail", id="0")
    read(client, "slow", 1)
    await until(lambda: all_idle(backend))
    read(client, "quick", 1)
    appear(client, "slow")
    assert await backend.groups.reclaim(await only(backend), ALIVE, 100, lock) == 0


async def test_a_group_is_removed_only_once_nobody_was_seen(
    backend: RedisBackend, client: redis.Redis, lock: Lock
) -> None:
    await publish(backend, "a")
    client.xgroup_create(CHANNEL, "mail", id="0")
    read(client, "m-1")
    await publish(backend, "b")
    seen = await only(backend)
    await until(lambda: all_idle(backend))
    appear(client, "m-1")  # back again, after somebody had decided
    assert not await backend.groups.remove(seen, ALIVE, lock)
    await until(lambda: all_idle(backend))
    assert await backend.groups.remove(seen, ALIVE, lock)
    assert await backend.groups.all(LONG) == []
    assert not await backend.groups.remove(seen, ALIVE, lock), "a repeat changes nothing"
    assert await backend.groups.reclaim(seen, ALIVE, 10, lock) == 0


async def test_a_member_that_had_nothing_to_read_may_still_be_there(
    backend: RedisBackend, client: redis.Redis, lock: Lock
) -> None:
    """This server notes a member only when it gets something."""
    await publish(backend, "a")
    client.xgroup_create(CHANNEL, "mail", id="0")
    read(client, "m-1")
    await until(lambda: all_idle(backend))
    group = await only(backend)
    assert not await backend.groups.remove(group, ALIVE, lock), "it may be waiting for news"
    await publish(backend, "b")
    assert not await backend.groups.remove(group, ALIVE, lock), "it has had no time to come"
    await backend.advance(2 * ALIVE)
    assert await backend.groups.remove(group, ALIVE, lock)


async def test_a_group_on_a_stream_that_is_gone_stops_nobody(
    backend: RedisBackend, client: redis.Redis, lock: Lock
) -> None:
    await publish(backend, "a")
    client.delete(CHANNEL)
    assert await backend.groups.all(LONG) == []
    lost = Group(CHANNEL, "mail", 0, None, 0, 0, None)
    assert await backend.groups.reclaim(lost, ALIVE, 10, lock) == 0
    assert not await backend.groups.remove(lost, ALIVE, lock)


async def test_a_holder_from_the_past_touches_no_group(
    backend: RedisBackend, client: redis.Redis, lock: Lock
) -> None:
    await publish(backend, "a")
    client.xgroup_create(CHANNEL, "mail", id="0")
    group = await only(backend)
    await backend.advance(LONG)
    assert await backend.locks.acquire(lock.name, "another", MINUTE) is not None
    for verb in (backend.groups.reclaim(group, ALIVE, 10, lock), backend.groups.remove(group, ALIVE, lock)):
        with pytest.raises(LockLost):
            await verb
    assert len(await backend.groups.all(LONG)) == 1


async def swept(backend: RedisBackend, **rules: Any) -> list[tuple[int, int, bool]]:
    """What a sweep found of groups: pending, reclaimed and removed."""
    would = await Sweeper(backend, Rules(**rules), "tester").dry_run()
    report = await Sweeper(backend, Rules(**rules), "tester").run_once()
    assert report is not None
    assert would.groups == report.groups
    return [(each.pending, each.reclaimed, each.removed) for each in report.groups]


async def alerts(backend: RedisBackend) -> list[Alert]:
    entries = await read_all(backend, "gbe.events.system.error")
    return [Alert.model_validate_json(entry.event.data) for entry in entries]


async def test_a_group_that_left_nothing_pending_is_no_alert(
    backend: RedisBackend, client: redis.Redis
) -> None:
    """Before 7.2 the server does not note a member that polls and gets nothing: it looks like a dead one."""
    await publish(backend, "a")
    client.xgroup_create(CHANNEL, "mail", id="0")
    client.xgroup_create(CHANNEL, "never read", id="0")
    client.xack(CHANNEL, "mail", *read(client, "polls"))

    async def idle() -> bool:
        assert read(client, "polls") == []
        groups = await backend.groups.all(ALIVE)
        return all(not group.members for group in groups)

    await until(idle)
    for dead in (DeadConsumers(ALIVE, ALIVE), DeadConsumers(ALIVE, ALIVE, "remove")):
        assert await swept(backend, dead_consumers=dead) == []
    assert await alerts(backend) == []
    assert {group.name for group in await backend.groups.all(LONG)} == {"mail", "never read"}


async def test_a_sweep_reports_reclaims_and_by_policy_removes(
    backend: RedisBackend, client: redis.Redis
) -> None:
    await publish(backend, "a", "b")
    client.xgroup_create(CHANNEL, "mail", id="0")
    read(client, "gone", 1)
    await until(lambda: all_idle(backend))
    report, remove = (DeadConsumers(ALIVE, ALIVE, action) for action in ("report", "remove"))
    assert await swept(backend, dead_consumers=report) == [(1, 0, False)]
    [alert] = await alerts(backend)
    assert (alert.kind, alert.channel, alert.consumer, alert.count) == ("dead_consumer", CHANNEL, "mail", 1)

    read(client, "alive", 1)
    assert await swept(backend, dead_consumers=report) == [(2, 1, False)]

    await publish(backend, "left undelivered")
    await until(lambda: all_idle(backend))
    await backend.advance(2 * ALIVE)
    guarded = {"dead_consumers": remove, "guard_groups": {">": ["mail"]}}
    assert await swept(backend, **guarded) == [(2, 0, False)], "one that guards is never removed"
    assert await swept(backend, dead_consumers=remove) == [(2, 0, True)]
    assert await backend.groups.all(LONG) == []
