"""Records of leases: kept as long as somebody may need them, and forgotten with their jobs."""

from __future__ import annotations

from datetime import timedelta

import pytest

from holdfast.backends.nats import NatsBackend, retention
from holdfast.backends.nats.state.entries import Entries
from holdfast.model.states import State
from holdfast.model.upkeep import Forgotten, Lock
from kit import CHANNEL, CONSUMER, MINUTE, claim, complete, publish, state, states, subscribe


@pytest.fixture
async def lock(backend: NatsBackend) -> Lock:
    held = await backend.locks.acquire("gbe:lock:sweeper", "me", timedelta(days=900))
    assert held is not None
    return held


@pytest.fixture
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "_KEPT_FOR_SURE", -3_600_000_000)


async def forget(backend: NatsBackend, lock: Lock, limit: int = 1000) -> Forgotten:
    now = await backend.now()
    return await backend.retention.forget(now - timedelta(days=900), now, limit, lock)


async def drop(backend: NatsBackend) -> None:
    """Let a later claim take leases that ended off the list."""
    await publish(backend, "next")
    [job] = await claim(backend)
    assert await complete(backend, job)


@pytest.mark.usefixtures("_at_once")
async def test_jobs_that_were_completed_together_are_forgotten_together(
    backend: NatsBackend, lock: Lock
) -> None:
    await subscribe(backend)
    await publish(backend, "a", "b", "c")
    assert all(await backend.leases.complete(await claim(backend)))
    await drop(backend)
    await backend.advance(MINUTE)
    before = await backend.now()
    assert (await backend.retention.forget(before, before, 10, None)).jobs == 3, "a dry run"
    assert await forget(backend, lock) == Forgotten(0, 3, more=False)
    assert await backend.leases.find_jobs(CHANNEL, "default", "a") == []
    assert await states(backend) == {State.DONE: 4}, "how many there were is known"
    assert await forget(backend, lock) == Forgotten(0, 0, more=False)


@pytest.mark.usefixtures("_at_once")
async def test_a_lease_that_is_listed_keeps_its_record(
    backend: NatsBackend, other: NatsBackend, lock: Lock
) -> None:
    """Without it the lease would be as its claim made it, and what is done would be done again."""
    await subscribe(backend)
    await publish(backend, "a", "b")
    jobs = await claim(backend)
    assert all(await backend.leases.complete(jobs))
    await backend.advance(MINUTE)
    assert (await forget(backend, lock)).jobs == 0
    await other.close()
    late = backend.fork()
    await late.open()
    await late.advance(timedelta(days=1))
    assert (await late.lifecycle.due(10)).due == []
    assert await late.leases.complete(jobs) == [False, False]
    assert await claim(late) == []
    await late.close()


async def test_what_is_young_by_the_servers_clock_stays(backend: NatsBackend, lock: Lock) -> None:
    await subscribe(backend)
    await publish(backend, "a")
    assert await complete(backend, (await claim(backend))[0])
    await drop(backend)
    await backend.advance(timedelta(days=30))
    assert (await forget(backend, lock)).jobs == 0
    assert await state(backend, "a") is State.DONE


@pytest.mark.usefixtures("_at_once")
async def test_forgetting_goes_in_steps(backend: NatsBackend, lock: Lock) -> None:
    await subscribe(backend)
    for number in range(5):
        await publish(backend, f"e-{number}")
        assert await complete(backend, (await claim(backend))[0])
    await drop(backend)
    await backend.advance(MINUTE)
    steps = [await forget(backend, lock, 2) for _ in range(4)]
    assert sum(step.jobs for step in steps) == 5
    assert steps[0].more


@pytest.mark.usefixtures("_at_once")
async def test_a_stale_worker_is_refused_although_nothing_is_remembered(
    backend: NatsBackend, other: NatsBackend, lock: Lock
) -> None:
    await subscribe(backend)
    await publish(backend, "a")
    [job] = await claim(backend)
    assert await complete(backend, job)
    await drop(backend)
    await backend.advance(MINUTE)
    assert (await forget(backend, lock)).jobs == 1
    assert not await complete(other, job)
    assert await backend.leases.job(CHANNEL, CONSUMER, job.id) is None


@pytest.mark.usefixtures("_at_once")
async def test_a_lease_keeps_its_record_although_the_mirror_begins_anew(
    backend: NatsBackend, lock: Lock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the mirror does not know at that moment may be listed all the same."""
    await subscribe(backend)
    await publish(backend, "a", "b")
    assert all(await backend.leases.complete(await claim(backend)))
    await backend.advance(MINUTE)
    first_at = Entries.first_at

    async def begun_anew(self: Entries, time: int) -> int:
        await backend._store.mirror.reload()
        return await first_at(self, time)

    monkeypatch.setattr(Entries, "first_at", begun_anew)
    assert (await forget(backend, lock)).jobs == 0
    assert await states(backend) == {State.DONE: 2}
