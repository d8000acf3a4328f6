"""Many at once: whoever loses a race for the same message steps aside, and all of them get on."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import Any

import pytest
from nats.aio.client import Client

from holdfast.backends.nats import NatsBackend
from holdfast.backends.nats.state.claims import Claims
from holdfast.backends.nats.state.entries import Entries
from holdfast.backends.nats.state.publisher import BatchPublisher
from holdfast.backends.nats.state.registry import Member
from holdfast.backends.nats.wire import stream, subjects
from holdfast.backends.nats.wire.batches import Batches, BatchMessage, Stale
from holdfast.backends.nats.wire.connection import NatsConnection
from holdfast.backends.nats.wire.stream import Capacity
from holdfast.embedded import Nats
from holdfast.model.decide import when_due
from holdfast.model.errors import NotFound
from holdfast.model.event import Event
from holdfast.model.job import Retry
from holdfast.model.policy import Policy
from holdfast.model.states import State
from kit import (
    CHANNEL,
    CONSUMER,
    MINUTE,
    bury,
    claim,
    claim_one,
    complete,
    ids,
    publish,
    read_all,
    record,
    states,
    subscribe,
)

pytestmark = pytest.mark.concurrency


@pytest.fixture
def refusals(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the server has refused since somebody else came first."""
    told: list[str] = []
    commit = Batches.commit

    async def watched(self: Batches, messages: Sequence[BatchMessage], *given: Any) -> int:
        try:
            return await commit(self, messages, *given)
        except Stale as error:
            told.append(str(error))
            raise

    monkeypatch.setattr(Batches, "commit", watched)
    return told


async def test_channels_that_many_make_at_once_are_captured_once_each(
    backend: NatsBackend, relaxed_nats: Nats, client: Client
) -> None:
    """Of two updates of a stream at once the server may subscribe to a subject twice."""
    connections = [NatsConnection(relaxed_nats.url) for _ in range(8)]
    for connection in connections:
        await connection.open()

    async def add(number: int) -> None:
        for turn in range(8):
            await stream.capture(connections[number], [f"made.by-{number}.{turn}"])

    await asyncio.gather(*map(add, range(len(connections))))
    for connection in connections:
        await connection.close()
    before = (await client.jetstream().stream_info(subjects.STREAM)).state.messages
    for name in (f"made.by-{number}.{turn}" for number in range(8) for turn in range(8)):
        await client.request(name, b"{}")
    stored = (await client.jetstream().stream_info(subjects.STREAM)).state.messages - before
    assert stored == 64


async def test_many_processes_make_channels_at_once(backend: NatsBackend) -> None:
    """Each one changes the stream's subjects, which the server lets everybody overwrite, and the registry."""
    others = [backend.fork() for _ in range(8)]
    for other in others:
        await other.open()

    async def begin(number: int) -> None:
        for turn in range(4):
            await publish(others[number], "a", channel=f"made.by-{number}.{turn}")

    try:
        await asyncio.gather(*map(begin, range(len(others))))
        channels = await backend.channels.names()
        assert len(channels) == 4 * len(others)
        assert [len(await read_all(backend, channel)) for channel in channels] == [1] * len(channels)
    finally:
        for other in others:
            await other.close()


async def test_subscribes_of_one_process_do_not_refuse_each_other(
    backend: NatsBackend, refusals: list[str]
) -> None:
    """All of them replace the same message; of many at once some would never get on."""
    await backend.channels.create(CHANNEL)
    await asyncio.gather(*(subscribe(backend, f"consumer{n}") for n in range(16)))
    assert refusals == []
    assert len(await backend.channels.consumers(CHANNEL)) == 16


async def test_consumers_that_appear_and_go_disturb_no_trim_and_no_list(backend: NatsBackend) -> None:
    """A reader of cursors learns of a new consumer from the registry before it knows where it begins."""
    await publish(backend, "a")
    other = backend.fork()
    await other.open()
    lock = await backend.locks.acquire("sweeper", "tester", MINUTE)
    assert lock is not None
    before = await backend.now()

    async def come_and_go() -> None:
        for turn in range(12):
            await other.channels.subscribe(CHANNEL, f"consumer{turn}", Policy.of(), "earliest")

    try:
        working = asyncio.create_task(come_and_go())
        while not working.done():
            await asyncio.gather(
                backend.retention.trim(CHANNEL, before, 10, lock),
                backend.cursors.all(),
                backend.channels.consumers(),
            )
        await working
        assert len(await backend.channels.consumers(CHANNEL)) == 12
    finally:
        await other.close()


async def test_a_key_whose_later_jobs_are_cancelled_is_claimed_at_once(
    backend: NatsBackend, refusals: list[str]
) -> None:
    """The end of each of them offers the first one again, which must not be twice in one batch."""
    await subscribe(backend, ordered=True)
    await backend.log.publish(CHANNEL, [Event(1, name, key="k") for name in "abcd"])
    for name in "bc":
        assert await backend.leases.cancel(CHANNEL, "default", name, None) == 1
    assert ids(await claim(backend)) == ["a"]
    assert refusals == []


class Overtaken:
    """The next batch of a consumer's jobs comes too late: right before it, somebody else acts."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.waits, self.may_go_on = asyncio.Event(), asyncio.Event()
        self.act: Callable[[], Awaitable[Any]] | None = None
        commit = Batches.commit

        async def late(batches: Batches, messages: Sequence[BatchMessage], *given: Any) -> int:
            act, self.act = self.act, None
            if act is not None:
                await act()
            return await commit(batches, messages, *given)

        async def wait(*_: float) -> None:
            self.waits.set()
            await self.may_go_on.wait()

        monkeypatch.setattr(Batches, "commit", late)
        monkeypatch.setattr("holdfast.backends.nats.state.store.backoff", wait)


async def claims(backend: NatsBackend) -> int:
    return len(await claim(backend))


async def counts(backend: NatsBackend) -> int:
    return sum((await backend.channels.consumer_stats(CHANNEL, CONSUMER)).states.values())


async def test_who_was_overtaken_waits_without_keeping_anybody_else_from_the_consumer(
    backend: NatsBackend,
    other: NatsBackend,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    await subscribe(backend)
    await publish(backend, "a", "b")
    job = await claim_one(backend)
    overtaken = Overtaken(monkeypatch)
    overtaken.act = lambda: claims(other)
    waiting = asyncio.create_task(backend.leases.cancel(CHANNEL, "default", "b", None))
    try:
        async with asyncio.timeout(30):
            await overtaken.waits.wait()
            assert await complete(backend, job)
    finally:
        overtaken.may_go_on.set()  # whoever waits holds what closing the store needs
    assert await waiting == 0


async def test_a_claim_that_lost_a_race_learns_only_of_what_changed(
    backend: NatsBackend, other: NatsBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that it asks for takes time, in which it may lose again."""
    await subscribe(backend)
    await publish(backend, *"abcd")
    await claim(backend, 1)
    overtaken, looked, look = Overtaken(monkeypatch), list[Any](), Claims._look
    overtaken.may_go_on.set()
    overtaken.act = lambda: other.leases.cancel(CHANNEL, "default", "b", None)

    async def watched(self: Claims, *given: Any) -> Any:
        looked.append(given)
        return await look(self, *given)

    monkeypatch.setattr(Claims, "_look", watched)
    assert ids(await claim(backend, 2)) == ["c", "d"]
    assert len(looked) == 1


@pytest.mark.parametrize("verb", ["pause", "remove", "empty"])
async def test_a_claim_that_lost_a_race_sees_what_became_of_its_consumer(
    backend: NatsBackend, other: NatsBackend, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    await subscribe(backend)
    await publish(backend, *"abcd")
    await claim(backend, 1)
    overtaken = Overtaken(monkeypatch)
    overtaken.may_go_on.set()

    async def act() -> None:
        await other.leases.cancel(CHANNEL, "default", "b", None)
        match verb:
            case "pause":
                await other.channels.set_paused(CHANNEL, CONSUMER, True)
            case "remove":
                while not (await other.channels.remove_consumer(CHANNEL, CONSUMER, 100)).done:
                    continue
            case _:
                await other.leases.cancel_waiting(CHANNEL, CONSUMER, 100)

    overtaken.act = act
    if verb == "remove":
        with pytest.raises(NotFound):
            await claim(backend, 2)
    else:
        assert await claim(backend, 2) == []


async def test_claims_of_different_keys_do_not_refuse_each_other(
    backend: NatsBackend, other: NatsBackend, refusals: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each job has a fence of its own; one for all keys let a single claim through at a time."""
    await subscribe(backend, ordered=True)
    await backend.log.publish(CHANNEL, [Event(1, "0", key="z"), Event(1, "a", key="k")])
    assert ids(await claim(other, 1)) == ["0"]
    overtaken, came = Overtaken(monkeypatch), list[str]()
    overtaken.may_go_on.set()

    async def urgent() -> None:
        await other.log.publish(CHANNEL, [Event(1, "b", key="l")], priority=9)
        came.extend(ids(await claim(other, 1)))

    overtaken.act = urgent
    assert ids(await claim(backend, 1)) == ["a"]
    assert came == ["b"]
    assert refusals == []


@pytest.mark.parametrize("verb", ["requeue", "revive"])
async def test_a_claim_does_not_overtake_an_older_job_of_its_key_that_becomes_ready(
    backend: NatsBackend,
    other: NatsBackend,
    verb: str,
    refusals: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    await subscribe(backend, ordered=True)
    await backend.log.publish(CHANNEL, [Event(1, name, key="k") for name in "ab"])
    dead = await claim_one(backend)
    assert await bury(backend, dead)
    assert await counts(other) > 0
    overtaken = Overtaken(monkeypatch)
    overtaken.may_go_on.set()

    async def comes_back() -> None:
        if verb == "requeue":
            assert await other.leases.requeue(CHANNEL, CONSUMER, dead.id)
        else:
            assert await other.deadletters.revive(CHANNEL, CONSUMER, [dead.id]) == [True]

    overtaken.act = comes_back
    assert ids(await claim(backend)) == ["a"]
    assert len(refusals) == 1


async def test_a_large_publish_that_others_overtake_is_not_repeated_whole(
    backend: NatsBackend, other: NatsBackend, refusals: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    await subscribe(backend, max_depth=5_000)
    overtaken, names = Overtaken(monkeypatch), ["x", "y", "z"]

    async def overtake() -> None:
        await publish(other, names.pop(0))
        overtaken.act = overtake if names else None

    overtaken.act = overtake
    await publish(backend, *(f"e-{n}" for n in range(600)))
    assert names == []
    assert len(refusals) == 1, "only who comes right before its end matters"
    assert await counts(other) == 603
    assert (await backend.channels.stats(CHANNEL)).events == 603, "nothing of it was appended in vain"


async def test_a_large_publish_is_not_held_up_by_its_own_events(
    backend: NatsBackend, other: NatsBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As long as it is under way nobody gets what comes behind it. It is weighed by what others have."""
    await subscribe(backend, max_depth=400)
    overtaken = Overtaken(monkeypatch)
    overtaken.act = lambda: publish(other, "z")
    levelled = list[str]()

    async def close_look(_: BatchPublisher, members: Sequence[Member]) -> dict[str, int]:
        levelled.extend(member.name for member in members)
        return {member.ref: 0 for member in members}

    monkeypatch.setattr(BatchPublisher, "_close_look", close_look)
    await publish(backend, *(f"e-{n}" for n in range(600)))
    assert levelled == []
    monkeypatch.undo()
    assert await counts(other) == 601


async def test_a_publish_is_overtaken_only_once_it_is_on_its_way(
    backend: NatsBackend, other: NatsBackend, refusals: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever has more to prepare would lose to all others."""
    await subscribe(backend, max_depth=100)
    acts, use = [lambda: publish(other, "z")], Capacity.use

    async def slowly(self: Capacity, *given: Any, **options: Any) -> None:
        while acts:
            await acts.pop()()
        await use(self, *given, **options)

    monkeypatch.setattr(Capacity, "use", slowly)
    await publish(backend, *"abc")
    assert await counts(backend) == 4
    assert refusals == []


async def test_a_claim_that_lost_the_frontier_takes_what_follows_and_reads_nothing_again(
    backend: NatsBackend, other: NatsBackend, refusals: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    await subscribe(backend)
    await publish(backend, *"abcdefgh")
    overtaken, reads = Overtaken(monkeypatch), list[str]()
    read = NatsConnection.read_raw

    async def watched(self: NatsConnection, query: Any, stream: str, *least: int) -> Any:
        if self is backend._store.connection and query.get("next_by_subj") == CHANNEL:
            reads.append(str(query))
        return await read(self, query, stream, *least)

    monkeypatch.setattr(NatsConnection, "read_raw", watched)
    overtaken.act = lambda: claim(other, 3)
    assert ids(await claim(backend, 3)) == ["d", "e", "f"]
    assert len(refusals) == 1
    assert len(reads) == 1
    assert not overtaken.waits.is_set(), "after the first lost race it does not wait"


@pytest.mark.parametrize("verb", ["cancel", "requeue"])
async def test_what_leaves_the_log_while_it_is_claimed_leaves_it_once(
    backend: NatsBackend, other: NatsBackend, verb: str, refusals: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    await subscribe(backend)
    await publish(backend, *"abc")
    [waiting] = await backend.leases.find_jobs(CHANNEL, "default", "b")
    overtaken = Overtaken(monkeypatch)
    overtaken.may_go_on.set()

    async def leave() -> None:
        if verb == "cancel":
            assert await other.leases.cancel(CHANNEL, "default", "b", None) == 1
        else:
            assert await other.leases.requeue(CHANNEL, CONSUMER, waiting.id)

    overtaken.act = leave
    assert ids(await claim(backend)) == (["a", "c"] if verb == "cancel" else ["a", "c", "b"])
    assert len(refusals) == 1
    assert await claim(other) == []


async def test_a_completion_and_a_burial_of_one_lease_do_not_undo_each_other(
    backend: NatsBackend, other: NatsBackend, refusals: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """From two processes: each replaces the record of the lease, one in a batch, one alone."""
    await subscribe(backend)
    await publish(backend, *"abcde")
    jobs = await claim(backend)
    overtaken = Overtaken(monkeypatch)
    overtaken.may_go_on.set()
    overtaken.act = lambda: other.leases.complete(jobs[:2])
    assert await bury(backend, jobs[2])
    overtaken.act = lambda: bury(other, jobs[4])
    assert await complete(backend, jobs[3])
    assert await backend.leases.complete(jobs) == [False] * 5
    assert await states(backend) == {State.DONE: 3, State.DEAD: 2}
    assert len(refusals) >= 2


async def test_many_who_change_one_lease_at_once_change_each_job_once(
    backend: NatsBackend, other: NatsBackend
) -> None:
    await subscribe(backend, max_attempts=9)
    await publish(backend, *(f"e-{n}" for n in range(60)))
    jobs = await claim(backend)

    async def end(store: NatsBackend, number: int) -> object:
        job = jobs[number]
        match number % 4:
            case 0 | 1:
                return await complete(store, job)
            case 2:
                return await bury(store, job)
        return (await store.leases.retry([Retry(job, MINUTE)]))[0]

    async def extend(store: NatsBackend) -> list[bool]:
        return await store.leases.extend(jobs, 60 * MINUTE)

    twice = [end(store, number) for number in range(60) for store in (backend, other)]
    results = await asyncio.gather(*twice, extend(backend), extend(other))
    accepted = [bool(each) for each in results[:120]]
    assert [accepted[at] + accepted[at + 1] for at in range(0, 120, 2)] == [1] * 60
    assert await states(backend) == {State.DONE: 30, State.DEAD: 15, State.SCHEDULED: 15}
    assert await states(other) == await states(backend)


async def test_a_member_whose_deadline_came_closer_is_still_held(
    backend: NatsBackend, other: NatsBackend
) -> None:
    """It has a record of its own then, under the token of the lease."""
    await subscribe(backend)
    await publish(backend, *"abc")
    jobs = await claim(backend)
    assert await other.leases.extend(jobs[:2], MINUTE) == [True, True]
    assert await backend.leases.extend(jobs, 2 * MINUTE) == [True] * 3
    assert await other.leases.extend(jobs, 60 * MINUTE) == [True] * 3
    await backend.advance(30 * MINUTE)
    assert (await backend.lifecycle.due(10)).due == []
    assert await backend.leases.complete(jobs) == [True] * 3
    assert await states(other) == {State.DONE: 3}


async def test_an_extension_brings_no_deadline_closer(backend: NatsBackend, other: NatsBackend) -> None:
    """Of two at about the same time the later one stands, also where the other one moves some members."""
    await subscribe(backend)
    await publish(backend, *"ab")
    jobs = await claim(backend)
    assert await backend.leases.extend(jobs[:1], 60 * MINUTE) == [True]
    before, sooner = await record(backend, "a"), 60 * MINUTE - timedelta(milliseconds=900)
    assert await other.leases.extend(jobs, sooner) == [True, True]
    after = await record(other, "a")
    assert before.lease_until
    assert after.lease_until
    assert after.lease_until >= before.lease_until


async def test_two_processes_take_up_special_events_once(backend: NatsBackend, other: NatsBackend) -> None:
    await subscribe(backend)
    for turn in range(8):
        await publish(backend, *(f"{turn}-{n}" for n in range(20)), priority=turn)
    names = list[str]()
    while taken := await asyncio.gather(*(claim(store, 10) for _ in range(8) for store in (backend, other))):
        if not any(taken):
            break
        names += [name for jobs in taken for name in ids(jobs)]
    assert len(names) == len(set(names)) == 160
    assert await states(backend) == {State.LEASED: 160}


async def test_a_heartbeat_waits_for_no_batch(
    backend: NatsBackend, other: NatsBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lease of a living worker must not run out because its store has much to write."""
    await subscribe(backend)
    await publish(backend, *"abc")
    jobs = await claim(backend, 2)
    stopped, waits, commit = asyncio.Event(), asyncio.Event(), Batches.commit

    async def slow(self: Batches, messages: Sequence[BatchMessage], *given: Any) -> int:
        if len(messages) > 1:
            waits.set()
            await stopped.wait()
        return await commit(self, messages, *given)

    monkeypatch.setattr(Batches, "commit", slow)
    writing = [asyncio.create_task(publish(backend, f"late-{n}")) for n in range(50)]
    writing.append(asyncio.create_task(backend.leases.cancel(CHANNEL, "default", "c", None)))
    try:
        async with asyncio.timeout(30):
            await waits.wait()
            assert await backend.leases.extend(jobs, 60 * MINUTE) == [True, True]
            assert await backend.leases.complete(jobs) == [True, True]
    finally:
        stopped.set()
    await asyncio.gather(*writing)


async def test_a_claim_takes_nothing_that_it_read_before_it_heard_of_a_newer_frontier(
    backend: NatsBackend, other: NatsBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another call of its process may learn of that frontier while this one reads the log."""
    await subscribe(backend)
    await publish(backend, *"abcdef")
    read, acts = Entries.raw_page, [1]

    async def slowly(self: Entries, *given: Any) -> Any:
        found = await read(self, *given)
        if self is other.leases._entries and acts:
            acts.pop()
            assert ids(await claim(backend, 3)) == ["a", "b", "c"]
            await other._store.mirror.sync("1")
        return found

    monkeypatch.setattr(Entries, "raw_page", slowly)
    assert ids(await claim(other, 6)) == ["d", "e", "f"]
    assert acts == []
    assert await states(backend) == {State.LEASED: 6}


async def test_a_lease_that_was_extended_while_it_is_given_up_stays(
    backend: NatsBackend, other: NatsBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another call of its process may read the record of the lease before the batch is written."""
    await subscribe(backend)
    await publish(backend, "a")
    [job] = await claim(backend)
    await backend.advance(60 * MINUTE)
    reading = await other.lifecycle.due(10)
    assert len(reading.due) == 1
    at, acts = Entries.at, [1]

    async def slowly(self: Entries, *given: Any) -> Any:
        found = await at(self, *given)
        if acts:
            acts.pop()
            assert await backend.leases.extend([job], 60 * MINUTE) == [True]
            assert (await other.lifecycle.due(10)).due == []
            await other.leases.find_jobs(CHANNEL, "default", "a")
        return found

    monkeypatch.setattr(Entries, "at", slowly)
    assert (await other.lifecycle.apply([when_due(reading.due[0])])).refused == 1
    assert await complete(backend, job)
