"""Cancelling what runs: over in the store at once, whatever the worker does; who did it and why is kept."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

import pytest
from sweeps import Sweep, locked

import holdfast
from holdfast.bus.client import Bus
from holdfast.contracts import Backend
from holdfast.model.event import DEFAULT_SOURCE
from holdfast.model.job import Cancellation, JobRecord
from holdfast.model.states import State
from holdfast.wiring import backend as connect_backend
from kit import (
    CHANNEL,
    CONSUMER,
    abandon,
    by_id,
    claim,
    claim_one,
    complete,
    ids,
    publish,
    read_all,
    record,
    states,
    subscribe,
    until,
)
from stores import STORES, Store

RUNNING = Cancellation(running=True, by="ann", reason="the customer withdrew")
AUDIT = "gbe.events.system.audit"


async def cancel(backend: Backend, name: str, consumer: str | None = CONSUMER) -> int:
    return await backend.leases.cancel(CHANNEL, DEFAULT_SOURCE, name, consumer, RUNNING)


async def test_a_leased_job_ends_with_who_and_why(bus: Bus, backend: Backend) -> None:
    await subscribe(backend)
    await publish(backend, "a")
    job = await claim_one(backend)
    assert await bus.cancel(CHANNEL, "a", running=True, by="ann", reason="the customer withdrew") == 1
    kept = await record(backend, "a")
    assert (kept.state, kept.cancelled_by, kept.reason) == (State.CANCELLED, "ann", "the customer withdrew")
    assert (kept.attempts, kept.abandonments, kept.errors, kept.token) == (1, 0, [], job.token)
    assert kept.ended_at is not None
    assert kept.lease_until is None
    assert kept == await backend.leases.job(CHANNEL, CONSUMER, job.id)
    with pytest.raises(holdfast.LeaseLost):
        await bus.finalize(job, success=True)
    with pytest.raises(holdfast.LeaseLost):
        await bus.finalize(job, success=False)
    assert await record(backend, "a") == kept
    assert await bus.cancel(CHANNEL, "a", running=True) == 0
    assert not await bus.requeue(CHANNEL, CONSUMER, job.id)
    assert (await abandon(backend)).total == 0
    assert await states(backend) == {State.CANCELLED: 1}


async def test_its_neighbours_in_the_lease_go_on(backend: Backend) -> None:
    await subscribe(backend)
    await publish(backend, *"abcdefg")
    jobs = by_id(await claim(backend))
    assert await complete(backend, jobs["a"])
    assert [await cancel(backend, name) for name in "acg"] == [0, 1, 1]
    assert await backend.leases.extend(list(jobs.values()), timedelta(hours=1)) == [
        name in "bdef" for name in "abcdefg"
    ]
    assert await cancel(backend, "e") == 1
    assert await backend.leases.complete(list(jobs.values())) == [name in "bdf" for name in "abcdefg"]
    assert await states(backend) == {State.DONE: 4, State.CANCELLED: 3}


async def test_a_whole_lease_of_cancelled_jobs_is_over(backend: Backend) -> None:
    await subscribe(backend)
    await publish(backend, *"abc")
    jobs = await claim(backend)
    assert [await cancel(backend, name) for name in "abc"] == [1, 1, 1]
    assert await backend.leases.complete(jobs) == [False] * 3
    trimmed = await Sweep(backend, await locked(backend))()
    assert (trimmed.removed, trimmed.hold) == (3, None), "nobody needs them any more"
    assert [(await record(backend, name)).cancelled_by for name in "abc"] == ["ann"] * 3


async def test_it_is_for_all_consumers_or_for_one_wherever_the_job_is(bus: Bus, backend: Backend) -> None:
    for consumer in ("done", "leased", "ready", "retried", "other"):
        await subscribe(backend, consumer)
    await publish(backend, "a", "b")
    await complete(backend, await claim_one(backend, consumer="done"))
    await claim(backend, consumer="leased")
    await claim(backend, consumer="other")
    [retried, _] = await claim(backend, consumer="retried")
    await bus.snooze(retried, "1h")
    assert await bus.cancel(CHANNEL, "a", consumer="other") == 0, "without running nothing is new"
    assert await bus.cancel(CHANNEL, "a", consumer="other", running=True) == 1
    assert await bus.cancel(CHANNEL, "a", running=True) == 3
    found = {job.consumer: job.state for job in await bus.find_jobs(CHANNEL, "a")}
    assert found.pop("done") is State.DONE
    assert set(found.values()) == {State.CANCELLED}
    assert await states(backend, consumer="leased") == {State.CANCELLED: 1, State.LEASED: 1}


async def test_the_next_of_its_key_and_a_full_consumer_have_room(bus: Bus, backend: Backend) -> None:
    await subscribe(backend, ordered=True, max_depth=2)
    await publish(backend, "a", "b", key="k")
    assert ids(await claim(backend)) == ["a"]
    with pytest.raises(holdfast.Overloaded):
        await publish(backend, "c", key="k")
    assert await cancel(backend, "a") == 1
    assert ids(await claim(backend)) == ["b"]
    await publish(backend, "c", key="k")


async def test_of_a_cancel_and_a_completion_at_once_one_is_accepted(backend: Backend, store: Store) -> None:
    rounds = 20
    names = [f"e-{n}" for n in range(rounds)]
    await subscribe(backend)
    await publish(backend, *names)
    jobs = by_id(await claim(backend))
    other = connect_backend(store.url, connections=2)
    await other.open()
    try:
        for name in names:
            done, cancelled = await asyncio.gather(complete(backend, jobs[name]), cancel(other, name))
            assert done + cancelled == 1
            assert (await record(backend, name)).state is (State.DONE if done else State.CANCELLED)
    finally:
        await other.close()
    assert sum((await states(backend)).values()) == rounds


async def test_whoever_is_named_is_in_the_audit(bus: Bus, backend: Backend) -> None:
    await subscribe(backend)
    await publish(backend, *"abcd")
    await claim(backend, 2)
    assert await bus.cancel(CHANNEL, "a", running=True, by="ann", reason="no more") == 1
    assert await bus.cancel(CHANNEL, "b", running=True) == 1
    assert await bus.cancel(CHANNEL, "b", running=True, by="bob") == 0
    assert await bus.cancel(CHANNEL, "c", by="eve", consumer=CONSUMER) == 1
    assert await bus.cancel(CHANNEL, "d") == 1
    noted = [json.loads(entry.event.data) for entry in await read_all(backend, AUDIT)]
    assert [(each["actor"], each["target"], each["outcome"]) for each in noted] == [
        ("ann", f"{CHANNEL}/*/a", "1 cancelled: no more"),
        (bus.name, f"{CHANNEL}/*/b", "1 cancelled"),
        ("eve", f"{CHANNEL}/{CONSUMER}/c", "1 cancelled"),
    ]
    assert [(await record(backend, name)).cancelled_by for name in "bcd"] == [bus.name, "eve", None]


async def test_a_record_takes_whatever_is_printable_and_nothing_else(bus: Bus, backend: Backend) -> None:
    await subscribe(backend)
    await publish(backend, "a")
    await claim(backend)
    for text in ("", "a\nb", "\x00", "\ud800", "x" * 501):
        for named in ({"by": text}, {"reason": text}):
            with pytest.raises(holdfast.InvalidInput, match="500 printable characters"):
                await bus.cancel(CHANNEL, "a", running=True, **named)
    assert await states(backend) == {State.LEASED: 1}
    longest = "'\\\"% {}é😀" + "x" * 489
    assert await bus.cancel(CHANNEL, "a", running=True, by=longest, reason=longest) == 1
    kept = await record(backend, "a")
    assert (kept.cancelled_by, kept.reason) == (longest, longest)


@pytest.mark.parametrize("store", STORES, indirect=True)  # through a pooler nobody is told
async def test_listeners_are_told_of_what_ran(backend: Backend) -> None:
    await subscribe(backend)
    await publish(backend, "leased", "other", "ready")
    job, _ = await claim(backend, 2)
    told, listens, channels = list[tuple[str, str, str]](), asyncio.Event(), ["mail", CHANNEL]

    def wake(channel: str) -> None:
        listens.set()

    listener = await backend.listen(channels, wake, cancelled=lambda *about: told.append(about))
    try:
        async with asyncio.timeout(60):
            await listens.wait()
        assert await cancel(backend, "ready") == 1
        assert await cancel(backend, "leased", None) == 1

        async def is_told() -> bool:
            return told[-1][1] == CONSUMER

        await until(is_told)
        assert sorted(told[:-1]) == sorted((each, "", "") for each in channels)
        assert told[-1] == (CHANNEL, CONSUMER, job.id)
    finally:
        await listener.close()


class Handler:
    """An app whose handler goes on until it is cancelled, in a thread until it sees so."""

    def __init__(self, *, plain: bool, lease: str = "5m") -> None:
        self.app, self.begun, self.seen = holdfast.App(), threading.Event(), list[str]()
        self.over = threading.Event()

        async def work(event: holdfast.Event, job: holdfast.Job) -> None:
            self.begun.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                self.seen.append(f"cancelled: {job.cancelled}")
                raise

        def work_plain(event: holdfast.Event, job: holdfast.Job) -> None:
            self.begun.set()
            while not (job.cancelled or self.over.is_set()):
                time.sleep(0.005)
            self.seen.append(f"cancelled: {job.cancelled}")

        options = {"lease": lease, "concurrency": 1, "prefetch": 1, "max_attempts": 1, "start": "earliest"}
        self.app.handler(CHANNEL, CONSUMER, **options)(work_plain if plain else work)

    @asynccontextmanager
    async def running(self, bus: Bus, backend: Backend, *, listen: bool) -> AsyncIterator[JobRecord]:
        """While it works on its first job, and somebody listens; ends it, and waits for its drain."""
        stop, listens, partition = asyncio.Event(), asyncio.Event(), bus.partitions.all[0]
        inner = partition.backend.listen

        def listen_to(channels: list[str], wake: object, failed: object, cancelled: object) -> object:
            return inner(channels, lambda _: listens.set(), failed, cancelled)  # type: ignore[arg-type]

        partition.backend.listen = listen_to  # type: ignore[assignment, method-assign]
        task = asyncio.create_task(self.app.run(bus, stop=stop, idle="100ms", grace="0s", listen=listen))
        try:
            assert await asyncio.to_thread(self.begun.wait, 60)
            async with asyncio.timeout(60):
                await (listens.wait() if listen else asyncio.sleep(0))
            yield await record(backend, "a")
            stop.set()
            await asyncio.wait_for(asyncio.shield(task), 60)
        finally:
            self.over.set()
            task.cancel()
            await asyncio.wait([task], timeout=60)


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("listen", [True, False])
async def test_the_handler_is_told(bus: Bus, backend: Backend, plain: bool, listen: bool) -> None:
    """By a notice, long before its heartbeat; by that where nobody listens."""
    listen = listen and not await _is_pooled(backend)  # nobody is told through a pooler
    handler = Handler(plain=plain, lease="5m" if listen else "2s")
    await publish(backend, "a")
    async with handler.running(bus, backend, listen=listen) as job:
        began = time.monotonic()
        assert await bus.cancel(CHANNEL, "a", running=True, by="ann", reason="no more") == 1

        async def is_told() -> bool:
            return bool(handler.seen)

        await until(is_told)
        assert time.monotonic() - began < 50, "its heartbeat alone would take 100 s"
    assert handler.seen == ["cancelled: True"]
    kept = await record(backend, "a")
    assert (kept.state, kept.token, kept.errors) == (State.CANCELLED, job.token, [])
    assert dict(bus.counters.outcomes) == {(CHANNEL, CONSUMER, "cancelled"): 1}


async def _is_pooled(backend: Backend) -> bool:
    session = getattr(backend, "_session", None)
    return hasattr(session, "through_pooler") and await session.through_pooler()
