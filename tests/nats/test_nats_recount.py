"""The recount on NATS: counts that were tampered with are found and repaired."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest
from burying import counted, die
from nats.aio.client import Client

from holdfast.backends.nats import NatsBackend
from holdfast.backends.nats.state import counts
from holdfast.backends.nats.wire import subjects
from holdfast.backends.nats.wire.batches import state
from holdfast.model.deadletters import Drift
from holdfast.model.errors import HoldfastError, LockLost, Overloaded
from holdfast.model.states import State
from holdfast.model.upkeep import Lock
from kit import CHANNEL, CONSUMER, MINUTE, bury, claim_one, complete, fail, publish, states, subscribe, until

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
    await write(backend, "HF.S.c.1.count.gone", {"dead": 3, "dead:terminal": 5, "dead:expired": -2})
    await write(backend, "HF.S.c.1.cluster.gone.3", {"made up": 1, "0000000000000000": -4})


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


async def test_a_store_of_another_version_is_refused_by_name(backend: NatsBackend, client: Client) -> None:
    known = json.loads((await backend._store.connection.last(["HF.S.registry"]))[0].data)
    for schema, advice in ((2, "empty it"), (99, "upgrade")):
        body = json.dumps(known | {"schema": schema}).encode()
        await client.jetstream().publish("HF.S.registry", body, headers={subjects.ROLLUP: "sub"})
        other = backend.fork()
        with pytest.raises(HoldfastError, match=f"schema {schema}.*{advice}"):
            await other.open()
        await other.close()


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
    assert await fail(backend, await claim_one(backend))
    await claim_one(backend)
    await write(backend, "HF.S.c.1.count.gone", {"ready": 5, "leased": 1, "scheduled": 2})
    with pytest.raises(Overloaded):
        await publish(backend, "b")
    assert await backend.deadletters.recount(True, lock) == []
    await publish(backend, "b")
    assert await states(backend) == {State.READY: 1, State.LEASED: 1}


async def test_a_process_whose_counts_were_added_to_the_others_counts_again(
    backend: NatsBackend, other: NatsBackend, lock: Lock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mark that tells of it has expired by then, and the process looks at the store all the time."""
    await subscribe(backend)
    first, second = await die(other, 2)
    assert await other.deadletters.purge(CHANNEL, CONSUMER, [first]) == [True]
    await backend.advance(timedelta(days=2))
    monkeypatch.setattr(counts, "TOMBSTONE_SECONDS", 1)
    assert (await backend.deadletters.fold(NO_TIME, 0, lock)).folded > 0
    [ref] = backend._store.registry.members

    async def has_expired() -> bool:
        await other.deadletters.counts()
        return not await backend._store.connection.last([subjects.count(ref, other._store.instance)])

    await until(has_expired)
    assert await other.deadletters.revive(CHANNEL, CONSUMER, [second]) == [True]
    assert await states(backend) == {State.READY: 1, State.PURGED: 1}
