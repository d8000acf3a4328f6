"""The recount on NATS: counts that were tampered with are found and repaired; an older store is indexed."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest
from burying import counted, die
from nats.aio.client import Client

from holdfast import failpoints
from holdfast.backends.nats import NatsBackend
from holdfast.backends.nats.wire import subjects
from holdfast.backends.nats.wire.batches import state
from holdfast.failpoints import FailpointError
from holdfast.model.deadletters import DeadFilter, Drift, Fold
from holdfast.model.errors import LockLost, Overloaded
from holdfast.model.states import State
from holdfast.model.upkeep import Lock
from kit import CHANNEL, CONSUMER, MINUTE, bury, claim_one, complete, publish, states, subscribe

NO_TIME = timedelta(0)


@pytest.fixture
async def lock(backend: NatsBackend) -> Lock:
    held = await backend.locks.acquire("gbe:lock:sweeper", "me", 60 * MINUTE)
    assert held is not None
    return held


async def write(backend: NatsBackend, subject: str, fields: object) -> None:
    """What no process of ours would write."""
    await backend._store.commit([state(subject, json.dumps(fields).encode())])


async def damage(backend: NatsBackend) -> None:
    """As if a dying server had kept only half of some batches."""
    await write(backend, "HF.S.count.1.gone", {"dead": 3, "dead:terminal": 5, "dead:expired": -2})
    await write(backend, "HF.S.cluster.1.gone.3", {"made up": 1, "0000000000000000": -4})


async def test_a_recount_finds_drift_and_repairs_it(backend: NatsBackend, lock: Lock) -> None:
    await subscribe(backend)
    await die(backend, 10, clusters=3)
    await damage(backend)
    expected = [Drift(CHANNEL, CONSUMER, "expired", -2, 0), Drift(CHANNEL, CONSUMER, "terminal", 15, 10)]
    for repair in (False, True):
        assert await backend.deadletters.recount(repair, lock) == expected
    assert await backend.deadletters.recount(False, lock) == []
    assert await counted(backend) == (10, 10)
    assert await states(backend) == {State.DEAD: 10}
    assert sorted(each.count for each in await backend.deadletters.clusters(None, None, 10)) == [3, 3, 4]


async def test_a_repair_is_right_although_others_move(backend: NatsBackend, lock: Lock) -> None:
    await subscribe(backend)
    ids = await die(backend, 10)
    await damage(backend)
    other = backend.fork()
    await other.open()
    assert await other.deadletters.revive(CHANNEL, CONSUMER, ids[:4]) == [True] * 4
    assert len(await backend.deadletters.recount(True, lock)) == 2
    assert await counted(other) == (6, 6)
    await other.close()


async def test_a_holder_that_lost_its_lock_repairs_nothing(backend: NatsBackend, lock: Lock) -> None:
    await subscribe(backend)
    await die(backend, 3)
    await damage(backend)
    await backend.advance(61 * MINUTE)
    assert await backend.locks.acquire("gbe:lock:sweeper", "other", MINUTE)
    with pytest.raises(LockLost):
        await backend.deadletters.recount(True, lock)
    assert (await counted(backend))[0] == 8


async def grow_old(backend: NatsBackend, client: Client) -> None:
    """Make the store what an older version has left: no index, no counts by fingerprint, other records."""
    for each in await backend._store.connection.last(["HF.D.>"]):
        record = json.loads(each.data)
        await write(backend, each.subject, {k: v for k, v in record.items() if k not in ("cluster", "patch")})
    for gone in ("HF.I.>", "HF.S.cluster.>"):
        await client.jetstream().purge_stream("HOLDFAST", subject=gone)
    registry = json.loads((await backend._store.connection.last(["HF.S.registry"]))[0].data)
    members = [each[:6] for each in registry["members"]]
    known = {k: registry[k] for k in ("identity", "channels", "epochs", "offsets", "full")}
    await write(backend, "HF.S.registry", known | {"schema": 1, "members": members})


@pytest.mark.parametrize("dies", [False, True])
async def test_an_older_store_is_indexed_once(
    backend: NatsBackend, client: Client, lock: Lock, dies: bool
) -> None:
    await subscribe(backend)
    ids = await die(backend, 500, clusters=2)
    await grow_old(backend, client)
    newer = backend.fork()
    await newer.open()
    assert await newer.deadletters.clusters(None, None, 10) == []
    assert await newer.deadletters.revive(CHANNEL, CONSUMER, ids[:20]) == [True] * 20
    assert sum(each.count for each in await newer.deadletters.counts()) == 480
    if dies:
        with failpoints.active("dead.mid_bootstrap", "raise"), pytest.raises(FailpointError):
            await newer.deadletters.fold(NO_TIME, 0, lock)
    assert await newer.deadletters.fold(NO_TIME, 0, lock) == Fold(0, bootstrapped=True)
    assert await newer.deadletters.fold(NO_TIME, 0, lock) == Fold(0)
    assert await counted(newer) == (480, 480)
    page = await newer.deadletters.page(DeadFilter(CHANNEL, CONSUMER), None, 1000)
    assert [each.record.id for each in page.letters] == ids[:19:-1], "in the order of their deaths"
    assert await newer.deadletters.purge(CHANNEL, CONSUMER, ids) == [False] * 20 + [True] * 480
    assert await newer.deadletters.recount(False, lock) == []
    assert await counted(newer) == (0, 0)
    await newer.close()


async def test_a_new_store_needs_no_indexing(backend: NatsBackend, lock: Lock) -> None:
    await subscribe(backend)
    await die(backend, 2)
    assert await backend.deadletters.fold(NO_TIME, 0, lock) == Fold(0)


async def test_a_recount_of_an_older_store_indexes_it_first(
    backend: NatsBackend, client: Client, lock: Lock
) -> None:
    await subscribe(backend)
    await die(backend, 5)
    await grow_old(backend, client)
    newer = backend.fork()
    await newer.open()
    assert await newer.deadletters.recount(True, lock) == []
    assert await counted(newer) == (5, 5)
    await newer.close()


async def test_counts_of_killed_processes_are_added_up_after_a_day(backend: NatsBackend, lock: Lock) -> None:
    await subscribe(backend)
    await publish(backend, *(f"e-{n}" for n in range(30)))
    others = [backend.fork() for _ in range(10)]
    for other in others:
        await other.open()
        assert await bury(other, await claim_one(other))
        assert await complete(other, await claim_one(other))
    before = await states(backend)
    *killed, idle = others
    for other in killed:
        await other._store.connection.close()
    await backend.advance(timedelta(days=2))
    assert (await backend.deadletters.fold(NO_TIME, 0, lock)).folded >= 20
    [ref] = backend._store.registry.members
    assert set(backend._store.mirror.count_revisions(ref)) == {subjects.count(ref, "all")}
    assert await states(backend) == before
    assert await bury(idle, await claim_one(idle)), "who was only idle goes on"
    assert await states(backend) == before | {State.READY: 9, State.DEAD: 11}
    assert await backend.deadletters.recount(False, lock) == []
    await idle.close()


async def test_counts_of_live_jobs_are_made_right_as_well(backend: NatsBackend, lock: Lock) -> None:
    """Or a bounded consumer would stay full for ever."""
    await subscribe(backend, max_depth=3)
    await publish(backend, "a")
    await claim_one(backend)
    await write(backend, "HF.S.count.1.gone", {"ready": 5, "leased": -1, "scheduled": 2})
    with pytest.raises(Overloaded):
        await publish(backend, "b")
    assert await backend.deadletters.recount(True, lock) == []
    await publish(backend, "b")
    assert await states(backend) == {State.READY: 1, State.LEASED: 1}
