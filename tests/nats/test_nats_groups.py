"""Foreign groups: JetStream consumers that other software has made are seen, and can guard the log."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Literal

import pytest
from nats.aio.client import Client
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy

from holdfast.backends.nats import NatsBackend
from holdfast.model.errors import LockLost
from holdfast.model.upkeep import Group, Hold, Lock, Trim
from holdfast.upkeep.announcements import Alert
from holdfast.upkeep.rules import DeadConsumers, Rules
from holdfast.upkeep.sweeper import Sweeper
from kit import CHANNEL, MINUTE, publish

ALIVE = timedelta(minutes=10)


@pytest.fixture
async def lock(backend: NatsBackend) -> Lock:
    held = await backend.locks.acquire("gbe:lock:sweeper", "me", 600 * MINUTE)
    assert held is not None
    return held


async def add(client: Client, name: str, filter_: str | None = CHANNEL) -> None:
    config = ConsumerConfig(
        durable_name=name,
        ack_policy=AckPolicy.EXPLICIT,
        deliver_policy=DeliverPolicy.ALL,
        filter_subject=filter_,
    )
    await client.jetstream().add_consumer("HOLDFAST", config)


async def fetch(client: Client, name: str, count: int, acked: int) -> None:
    """Read some messages and acknowledge the first few of them."""
    subscription = await client.jetstream().pull_subscribe_bind(name, "HOLDFAST")
    for number, message in enumerate(await subscription.fetch(count, timeout=60)):
        if number < acked:
            await message.ack_sync()
    await subscription.unsubscribe()


async def trim(backend: NatsBackend, lock: Lock, *groups: str) -> Trim:
    await backend.advance(MINUTE)
    return await backend.retention.trim(CHANNEL, await backend.now(), 1000, lock, groups=groups)


async def test_a_foreign_consumer_is_seen(backend: NatsBackend, client: Client) -> None:
    receipts = await publish(backend, "a", "b", "c")
    assert await backend.groups.all(ALIVE) == []
    await add(client, "warehouse")
    [new] = await backend.groups.all(ALIVE)
    assert (new.channel, new.name, new.pending, new.delivered) == (CHANNEL, "warehouse", 0, None)
    await fetch(client, "warehouse", 2, acked=1)
    [seen] = await backend.groups.all(ALIVE)
    assert (seen.members, seen.pending, seen.stale) == (1, 1, 0)
    assert seen.delivered == receipts[1].position
    await backend.advance(2 * ALIVE)
    [idle] = await backend.groups.all(ALIVE)
    assert (idle.members, idle.pending, idle.stale) == (0, 1, 1)
    assert idle.idle is not None
    assert 2 * ALIVE <= idle.idle < 3 * ALIVE


async def test_it_is_seen_on_every_channel_that_it_reads(backend: NatsBackend, client: Client) -> None:
    for channel in (CHANNEL, "gbe.events.a", "gbe.events.b"):
        await backend.channels.create(channel)
    await add(client, "all", None)
    await add(client, "tail", "gbe.events.>")
    await add(client, "ours", "HF.S.>")
    found = {(group.name, group.channel) for group in await backend.groups.all(ALIVE)}
    tail = {("tail", "gbe.events.a"), ("tail", "gbe.events.b")}
    assert found == tail | {("all", channel) for channel in (CHANNEL, "gbe.events.a", "gbe.events.b")}


async def test_a_listed_group_guards_what_it_has_not_acknowledged(
    backend: NatsBackend, client: Client, lock: Lock
) -> None:
    receipts = await publish(backend, "a", "b", "c")
    await add(client, "warehouse")
    assert await trim(backend, lock, "warehouse") == Trim(0, more=False, hold=Hold("warehouse", None))
    await fetch(client, "warehouse", 3, acked=2)
    expected = Trim(2, more=False, hold=Hold("warehouse", receipts[1].position))
    assert await trim(backend, lock, "warehouse") == expected
    assert (await trim(backend, lock)).removed == 1, "who is not listed guards nothing"


async def test_a_listed_group_that_is_not_there_needs_everything(
    backend: NatsBackend, client: Client, lock: Lock
) -> None:
    await publish(backend, "a")
    await add(client, "elsewhere", "refunds")
    for name in ("missing", "elsewhere"):
        assert await trim(backend, lock, name) == Trim(0, more=False, hold=Hold(name, None))


async def test_a_group_is_removed_once_nobody_uses_it(
    backend: NatsBackend, client: Client, lock: Lock
) -> None:
    await publish(backend, "a")
    await add(client, "warehouse")
    [group] = await backend.groups.all(ALIVE)
    assert not await backend.groups.remove(group, ALIVE, lock), "somebody has just made it"
    await backend.advance(2 * ALIVE)
    subscription = await client.jetstream().pull_subscribe_bind("warehouse", "HOLDFAST")
    await subscription.fetch(1, timeout=60)
    assert not await backend.groups.remove(group, ALIVE, lock), "somebody has just read from it"
    await subscription.unsubscribe()
    await backend.advance(2 * ALIVE)
    assert await backend.groups.reclaim(group, ALIVE, 10, lock) == 0
    assert await backend.groups.remove(group, ALIVE, lock)
    assert not await backend.groups.remove(group, ALIVE, lock)
    assert await backend.groups.all(ALIVE) == []


async def test_a_sweeper_from_the_past_removes_nothing(
    backend: NatsBackend, client: Client, lock: Lock
) -> None:
    await backend.channels.create(CHANNEL)
    await add(client, "warehouse")
    await backend.advance(timedelta(days=1))
    assert await backend.locks.acquire("gbe:lock:sweeper", "other", MINUTE) is not None
    group = Group(CHANNEL, "warehouse", 0, None, 0, 0, None)
    with pytest.raises(LockLost):
        await backend.groups.remove(group, ALIVE, lock)
    with pytest.raises(LockLost):
        await backend.groups.reclaim(group, ALIVE, 10, lock)
    assert len(await backend.groups.all(ALIVE)) == 1


async def test_a_sweep_reports_and_by_policy_removes(backend: NatsBackend, client: Client) -> None:
    async def swept(action: Literal["report", "remove"], **rules: Any) -> list[tuple[int, bool]]:
        dead = DeadConsumers(ALIVE, 2 * ALIVE, action)
        sweeper = Sweeper(backend, Rules(dead_consumers=dead, **rules), "tester")
        would, report = await sweeper.dry_run(), await sweeper.run_once()
        assert report is not None
        assert would.groups == report.groups
        return [(each.pending, each.removed) for each in report.groups if each.channel == CHANNEL]

    await publish(backend, "a")
    await add(client, "warehouse")
    await add(client, "quiet")
    await fetch(client, "quiet", 1, acked=1)
    await fetch(client, "warehouse", 1, acked=0)
    assert await swept("remove") == [], "it lives"
    await backend.advance(3 * ALIVE)
    assert await swept("report") == [(1, False)]
    [entry] = await backend.log.read("gbe.events.system.error", None, 10)
    alert = Alert.model_validate_json(entry.event.data)
    assert (alert.kind, alert.consumer, alert.count) == ("dead_consumer", "warehouse", 1)
    assert await swept("remove", guard_groups={CHANNEL: ["warehouse"]}) == [(1, False)]
    assert await swept("remove") == [(1, True)]
    assert [group.name for group in await backend.groups.all(ALIVE)] == ["quiet"], "it left nothing pending"
