"""Dead letters on NATS: the index read backwards, counts of many processes, batches of exits, patches."""

from __future__ import annotations

import asyncio
import random

import pytest
from burying import counted, die

from holdfast import failpoints
from holdfast.backends.nats import NatsBackend
from holdfast.backends.nats.state.dead_index import backwards
from holdfast.backends.nats.wire import subjects
from holdfast.backends.nats.wire.batches import BatchMessage
from holdfast.failpoints import FailpointError
from holdfast.model.deadletters import DeadFilter
from holdfast.model.event import MAX_DATA, Event
from holdfast.model.job import Burial, Failure, Reason, Retry
from holdfast.model.states import State
from kit import BOOM, CHANNEL, CONSUMER, bury, claim, claim_one, complete, publish, states, subscribe

PATCH = b"x" * MAX_DATA


@pytest.mark.parametrize("size", [2, 10, 100])
async def test_the_index_reads_backwards_whatever_stands_between(backend: NatsBackend, size: int) -> None:
    chance = random.Random(size)
    store, kinds = backend._store, ["HF.Z.a", "HF.Z.b"]
    weights = [chance.choice([(0, 1), (1, 0), (1, 9), (1, 1)]) for _ in range(12)]
    messages = [BatchMessage(chance.choices(kinds, weight)[0]) for weight in weights for _ in range(40)]
    last = await store.commit(messages)
    first = last - len(messages) + 1
    meant = [first + n for n, message in enumerate(messages) if message.subject == "HF.Z.a"]
    for until in (0, first, last, last + 10_000, *chance.sample(range(first, last), 3)):
        pages = [[m.seq for m in page] async for page in backwards(store.connection, "HF.Z.*", until, size)]
        assert [seq for page in pages for seq in page] == list(range(min(until, last), first - 1, -1))
        assert all(0 < len(page) <= size for page in pages)
        found = [m.seq async for page in backwards(store.connection, "HF.Z.a", until, size) for m in page]
        assert found == [seq for seq in reversed(meant) if seq <= until]


async def test_a_fingerprint_may_be_any_text(backend: NatsBackend) -> None:
    await subscribe(backend)
    odd = ["", "%", "a.b", "*", ">", "ü ö", "x" * 300]
    await publish(backend, *(f"e-{n}" for n in range(len(odd))))
    for job, fingerprint in zip(await claim(backend), odd, strict=True):
        assert await bury(backend, job, Failure("no", "E", fingerprint))
    assert {
        each.fingerprint: each.count for each in await backend.deadletters.clusters(None, None, 10)
    } == dict.fromkeys(odd, 1)
    for number, fingerprint in enumerate(odd):
        page = await backend.deadletters.page(
            DeadFilter(CHANNEL, CONSUMER, fingerprint=fingerprint), None, 10
        )
        assert [each.record.event_id for each in page.letters] == [f"e-{number}"]


async def test_counts_of_all_processes_are_one_and_outlive_them(backend: NatsBackend) -> None:
    await subscribe(backend)
    other, killed = backend.fork(), backend.fork()
    for each in (other, killed):
        await each.open()
    ids = await die(backend, 6) + await die(other, 4, "o", clusters=2) + await die(killed, 5, "k")
    assert await counted(backend) == (15, 15)
    assert await other.deadletters.revive(CHANNEL, CONSUMER, ids[:5]) == [True] * 5
    assert await killed.deadletters.purge(CHANNEL, CONSUMER, ids[5:12]) == [True] * 7
    await killed._store.connection.close()
    await other.close()
    assert await counted(backend) == (3, 3), "of one that folded them, and of one that could not"
    left = await backend._store.connection.last(["HF.S.c.*.count.>", "HF.S.c.*.cluster.>"])
    writers = {message.subject.split(".")[5] for message in left if message.data}
    assert writers == {backend._store.instance, killed._store.instance, "all"}
    late = backend.fork()
    await late.open()
    assert await counted(late) == (3, 3)
    await late.close()


async def test_processes_that_move_the_same_letters_share_them(backend: NatsBackend) -> None:
    await subscribe(backend)
    others = [backend.fork() for _ in range(3)]
    for each in others:
        await each.open()
    ids = await die(backend, 400, clusters=7)
    calls = [each.deadletters.revive(CHANNEL, CONSUMER, ids) for each in (backend, others[0])]
    calls += [each.deadletters.purge(CHANNEL, CONSUMER, ids[::-1]) for each in others[1:]]
    answers = await asyncio.gather(*calls)
    assert [sum(each) for each in zip(*answers[:2], *(a[::-1] for a in answers[2:]), strict=True)] == [
        1
    ] * 400
    assert await counted(backend) == (0, 0)
    found = await states(backend)
    assert (found.get(State.READY, 0) + found.get(State.PURGED, 0), found.get(State.DEAD)) == (400, None)
    for each in others:
        await each.close()


@pytest.mark.parametrize("verb", ["revive", "purge"])
async def test_exits_that_died_between_two_batches_are_repeated(backend: NatsBackend, verb: str) -> None:
    await subscribe(backend)
    ids = await die(backend, 400)
    move = getattr(backend.deadletters, verb)
    with failpoints.active("dead.mid_move", "raise"), pytest.raises(FailpointError):
        await move(CHANNEL, CONSUMER, ids)
    left, by_cluster = await counted(backend)
    assert 0 < left == by_cluster < 400, "a whole batch has moved, with its counts"
    answers = await move(CHANNEL, CONSUMER, ids)
    assert answers == [False] * (400 - left) + [True] * left
    assert await counted(backend) == (0, 0)


async def test_a_patch_may_be_larger_than_a_message_and_goes_with_its_job(backend: NatsBackend) -> None:
    await subscribe(backend)
    event = Event(b"own", "a", source="shop", type="order", key="k", headers={"trace": "1"})
    await backend.log.publish(CHANNEL, [event])
    job = await claim_one(backend)
    for data in (b"first", PATCH):
        assert await bury(backend, job)
        assert await backend.deadletters.revive(CHANNEL, CONSUMER, [job.id], data) == [True]
        job = await claim_one(backend)
        assert job.event == event._replace(data=data, time=job.event.time)
    assert await complete(backend, job)
    left = await backend._store.connection.last(["HF.R.>", "HF.B.>"])
    assert len(left) == 3
    assert not any(message.data for message in left), "marks, for a second"


async def test_a_patch_revives_even_a_job_whose_event_is_gone(
    backend: NatsBackend, other: NatsBackend
) -> None:
    await subscribe(backend)
    await publish(backend, "a")
    # What was released has a record; and who has read the event remembers it.
    assert await other.leases.retry([Retry(await claim_one(other), None)]) == [True]
    await backend._store.connection.request("$JS.API.STREAM.PURGE.HOLDFAST", {"filter": CHANNEL})
    assert await claim(backend) == []
    [letter] = (await backend.deadletters.page(DeadFilter(), None, 10)).letters
    whole = await backend.deadletters.letter(CHANNEL, CONSUMER, letter.record.id)
    assert whole is not None
    assert whole.event is None
    assert await backend.deadletters.revive(CHANNEL, CONSUMER, [letter.record.id], b"new") == [True]
    again = (await claim_one(backend)).event
    assert (again.id, again.data) == ("a", b"new")


async def test_a_burial_in_bulk_keeps_every_event(backend: NatsBackend) -> None:
    await subscribe(backend)
    await publish(backend, *(f"e-{n}" for n in range(600)))
    jobs = await claim(backend, 600)
    assert await backend.leases.bury([Burial(job, Reason.TERMINAL, BOOM) for job in jobs]) == [True] * 600
    await backend._store.connection.request("$JS.API.STREAM.PURGE.HOLDFAST", {"filter": CHANNEL})
    assert await backend.deadletters.revive(CHANNEL, CONSUMER, [job.id for job in jobs]) == [True] * 600
    assert {job.event.json()["id"] for job in await claim(backend, 600)} == {f"e-{n}" for n in range(600)}


async def test_a_job_that_dies_again_at_once_is_dead(backend: NatsBackend) -> None:
    """What told that it had left is about to expire, and the server would remove its successor as well."""
    await subscribe(backend)
    await publish(backend, "a")
    job = await claim_one(backend)
    assert await bury(backend, job)
    assert await backend.deadletters.revive(CHANNEL, CONSUMER, [job.id]) == [True]
    assert await bury(backend, await claim_one(backend))
    places = [subjects.dead("1", job.id), subjects.index("1", seq=job.id)]
    letter, entry = await backend._store.connection.last(places)
    assert letter.data
    assert entry.data
    assert not {subjects.ROLLUP} & {*letter.headers, *entry.headers}
