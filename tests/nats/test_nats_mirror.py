"""The mirror: calls of one process share it, and one reads on while another one decides."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from holdfast.backends.nats import NatsBackend
from holdfast.backends.nats.state import mirror
from holdfast.backends.nats.state.claims import Claims
from holdfast.backends.nats.state.jobs import Jobs
from holdfast.backends.nats.state.lease_records import LeaseRecords
from holdfast.backends.nats.state.take_up import TakeUp
from holdfast.backends.nats.wire import subjects
from holdfast.backends.nats.wire.connection import NatsConnection
from holdfast.model.job import Retry
from holdfast.model.states import State
from kit import CHANNEL, CONSUMER, MINUTE, bury, claim, fail, ids, publish, states, subscribe

pytestmark = pytest.mark.concurrency


def once_after(
    monkeypatch: pytest.MonkeyPatch, owner: type, name: str, of: object, act: Callable[[], Awaitable[Any]]
) -> list[int]:
    """Act once, right after that method of one object has done its work; then the list is empty."""
    acts, method = [1], getattr(owner, name)

    async def slowly(self: object, *given: Any, **options: Any) -> Any:
        found = await method(self, *given, **options)
        if self is of and acts:
            acts.pop()
            await act()
        return found

    monkeypatch.setattr(owner, name, slowly)
    return acts


def once_before(
    monkeypatch: pytest.MonkeyPatch, owner: type, name: str, of: object, act: Callable[[], Awaitable[Any]]
) -> list[int]:
    """Do as `once_after`, right before the method does its work."""
    acts, method = [1], getattr(owner, name)

    async def late(self: object, *given: Any, **options: Any) -> Any:
        if self is of and acts:
            acts.pop()
            await act()
        return await method(self, *given, **options)

    monkeypatch.setattr(owner, name, late)
    return acts


async def test_a_claim_is_about_the_frontier_for_which_it_has_read_the_log(
    backend: NatsBackend, other: NatsBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another call of its process may learn of a newer one before it commits."""
    await subscribe(backend)
    await publish(backend, *"abcdef")
    await publish(backend, "later", at=await backend.now() + 60 * MINUTE)

    async def claim_first() -> None:
        assert ids(await claim(backend, 3)) == ["a", "b", "c"]
        await other._store.mirror.sync("1")

    acts = once_after(monkeypatch, TakeUp, "marked", other.leases._take_up, claim_first)
    assert ids(await claim(other)) == ["d", "e", "f"]
    assert acts == []
    assert await states(backend) == {State.LEASED: 6, State.SCHEDULED: 1}


async def test_a_claim_sees_nothing_of_a_reading_that_has_only_begun(
    backend: NatsBackend, other: NatsBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first page may tell of a job, and the second one of what goes before it."""
    await subscribe(backend, ordered=True)
    assert await claim(other) == []
    monkeypatch.setattr(mirror, "_PAGE", 1)
    looked, reads, again = asyncio.Event(), asyncio.Event(), asyncio.Event()
    look, read, pages = Claims._look, NatsConnection.read_raw, list[int]()
    catch_up = Claims._catch_up

    async def catch_up_and_tell(self: Claims, member: Any) -> Any:
        again.set()
        return await catch_up(self, member)

    async def look_and_wait(self: Claims, *given: Any) -> Any:
        found = await look(self, *given)
        if self is other.leases._claims:
            looked.set()
            await reads.wait()
        return found

    async def read_and_wait(self: NatsConnection, query: Any, stream: str, *least: int) -> Any:
        if self is other._store.connection and query.get("next_by_subj") == subjects.state_of("1"):
            pages.append(query["seq"])
            if len(pages) == 2:
                reads.set()
                others = {claiming, asyncio.create_task(again.wait())}
                await asyncio.wait(others, return_when=asyncio.FIRST_COMPLETED)
        return await read(self, query, stream, *least)

    monkeypatch.setattr(Claims, "_look", look_and_wait)
    monkeypatch.setattr(Claims, "_catch_up", catch_up_and_tell)
    claiming = asyncio.create_task(claim(other, 1))
    async with asyncio.timeout(30):
        await looked.wait()
        await publish(backend, "a", "b", key="k")
        assert ids(await claim(backend)) == ["a"]
        monkeypatch.setattr(NatsConnection, "read_raw", read_and_wait)
        assert await states(other) == {State.LEASED: 1, State.READY: 1}
        assert ids(await claiming) == [], "its key is held"
    assert reads.is_set()


@pytest.mark.parametrize("ref", ["", "1"])
async def test_what_is_read_while_the_mirror_begins_anew_is_read_again(
    backend: NatsBackend, other: NatsBackend, ref: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was read belongs to a view that somebody had given up as wrong."""
    await subscribe(backend)
    await publish(backend, "a")
    held = other._store.mirror
    await held.sync(ref)
    known = held._view
    acts = once_after(monkeypatch, NatsConnection, "read_raw", other._store.connection, held.reload)
    await held.sync(ref)
    assert acts == []
    assert held._view is not known
    assert list(held.frontiers) == ["1"]


async def is_found(backend: NatsBackend, verb: str, job_id: str) -> bool:
    """Whether a verb that looks for the only job finds it."""
    match verb:
        case "job":
            return await backend.leases.job(CHANNEL, CONSUMER, job_id) is not None
        case "find_jobs":
            return bool(await backend.leases.find_jobs(CHANNEL, "default", "a"))
        case _:
            return await backend.leases.requeue(CHANNEL, CONSUMER, job_id)


@pytest.mark.parametrize("verb", ["job", "find_jobs", "requeue"])
async def test_a_job_that_leaves_its_lease_is_found_all_the_same(
    backend: NatsBackend, other: NatsBackend, verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The record of the lease may be newer than what is known of jobs."""
    await subscribe(backend)
    await publish(backend, "a")
    [job] = await claim(backend)

    async def snooze() -> None:
        assert await backend.leases.retry([Retry(job, MINUTE)]) == [True]

    acts = once_before(monkeypatch, LeaseRecords, "read", other.leases._records, snooze)
    assert await is_found(other, verb, job.id)
    assert acts == []
    assert await states(backend) == {State.READY if verb == "requeue" else State.SCHEDULED: 1}


@pytest.mark.parametrize("verb", ["job", "find_jobs", "requeue"])
async def test_a_job_that_comes_back_from_the_dead_is_found_all_the_same(
    backend: NatsBackend, other: NatsBackend, verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever looks among the living first and among the dead after that may miss it."""
    await subscribe(backend)
    await publish(backend, "a")
    [job] = await claim(backend)
    assert await bury(backend, job)

    async def revive() -> None:
        assert await backend.deadletters.revive(CHANNEL, CONSUMER, [job.id]) == [True]

    acts = once_before(monkeypatch, Jobs, "ended", other.leases._jobs, revive)
    assert await is_found(other, verb, job.id)
    assert acts == []
    assert await states(backend) == {State.READY: 1}


@pytest.mark.parametrize("verb", ["job", "find_jobs", "requeue"])
async def test_a_job_is_found_although_the_mirror_begins_anew(
    backend: NatsBackend, other: NatsBackend, verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another call of its process may have found it wrong."""
    await subscribe(backend)
    await publish(backend, "a")
    [job] = await claim(backend)
    begin_anew = other._store.mirror.reload
    acts = once_before(monkeypatch, LeaseRecords, "read", other.leases._records, begin_anew)
    assert await is_found(other, verb, job.id)
    assert acts == []


async def test_what_is_taken_up_while_jobs_are_counted_is_counted_once(
    backend: NatsBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By another call of the same process."""
    await subscribe(backend, ordered=True)
    await publish(backend, *"abc")
    acts = once_after(monkeypatch, LeaseRecords, "read", backend.leases._records, lambda: claim(backend, 1))
    assert sum((await states(backend)).values()) == 3
    assert acts == []
    assert await states(backend) == {State.LEASED: 1, State.READY: 2}


async def test_no_result_is_refused_by_a_mirror_that_began_anew_before_the_claim(
    backend: NatsBackend, other: NatsBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reading of everything may take its place that ended before the claim, of a job of its own."""
    await subscribe(backend)
    await publish(backend, "a")
    [job] = await claim(other)
    assert await fail(other, job)
    await backend.lifecycle.due(10)
    [job] = await claim(other)

    async def put_in_place() -> None:
        other._store.mirror._view = backend._store.mirror._view

    acts = once_after(monkeypatch, mirror.Mirror, "sync", other._store.mirror, put_in_place)
    assert await fail(other, job)
    assert acts == []
