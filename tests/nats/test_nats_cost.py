"""Costs: what a step asks of the server does not depend on how many jobs wait."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import Any

import pytest
from burying import counted, die

from holdfast.backends.nats import NatsBackend
from holdfast.backends.nats.state import job_records
from holdfast.backends.nats.wire.batches import Batches, BatchMessage
from holdfast.backends.nats.wire.connection import NatsConnection
from holdfast.model.deadletters import DeadFilter
from holdfast.model.errors import Overloaded
from holdfast.model.event import Event
from kit import CHANNEL, CONSUMER, claim, ids, publish, subscribe


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every question to the server."""
    questions: list[str] = []
    for name in ("read_raw", "_one", "request"):
        original = getattr(NatsConnection, name)

        async def noted(
            self: NatsConnection, query: object, *rest: object, original: Any = original, **more: object
        ) -> object:
            questions.append(str(query))
            return await original(self, query, *rest, **more)

        monkeypatch.setattr(NatsConnection, name, noted)
    return questions


async def questions(asked: list[str], call: Callable[[], Awaitable[object]]) -> int:
    asked.clear()
    await call()
    return len(asked)


async def test_a_lifecycle_read_costs_the_same_however_many_wait(
    backend: NatsBackend, asked: list[str]
) -> None:
    await subscribe(backend)
    later = await backend.now() + timedelta(days=1)
    await publish(backend, "now", "too")
    await publish(backend, "later", at=later)
    await backend.lifecycle.due(100)
    few = await questions(asked, lambda: backend.lifecycle.due(100))
    await publish(backend, *(f"e-{n}" for n in range(2000)))
    await publish(backend, *(f"l-{n}" for n in range(200)), at=later)
    await backend.lifecycle.due(1000)
    assert await questions(asked, lambda: backend.lifecycle.due(100)) == few <= 4
    assert (await backend.lifecycle.due(100)).load == 201 + 1000, "what waits counts up to a thousand"


async def test_a_lifecycle_read_costs_the_same_however_many_consumers_there_are(
    backend: NatsBackend, asked: list[str]
) -> None:
    await subscribe(backend, expires_after="1h")
    await publish(backend, "a")
    for number in range(20):
        await subscribe(backend, f"c{number}", expires_after="1h")
        await publish(backend, f"e-{number}")
        assert len(await claim(backend, 1, consumer=f"c{number}")) == 1
    await backend.lifecycle.due(100)
    assert await questions(asked, lambda: backend.lifecycle.due(100)) <= 3 + 10


async def test_a_waiting_event_is_stored_for_nobody(backend: NatsBackend) -> None:
    for number in range(5):
        await subscribe(backend, f"c{number}")
    await publish(backend, *(f"e-{n}" for n in range(100)))
    await backend.lifecycle.due(100)
    before = (await backend._store.info())["state"]["messages"]
    assert len(await claim(backend, 50, consumer="c0")) == 50
    assert (await backend._store.info())["state"]["messages"] == before, "the frontier is replaced"


async def test_a_claim_and_its_completion_are_one_message_each(
    backend: NatsBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent, commit = list[list[str]](), Batches.commit

    async def watched(self: Batches, messages: Sequence[BatchMessage], *given: Any) -> int:
        sent.append([message.subject for message in messages])
        return await commit(self, messages, *given)

    await subscribe(backend)
    await publish(backend, *(f"e-{n}" for n in range(600)))
    monkeypatch.setattr(Batches, "commit", watched)
    jobs = await claim(backend, 500)
    assert all(await backend.leases.extend(jobs, timedelta(hours=1)))
    assert all(await backend.leases.complete(jobs[:100]))
    assert all(await backend.leases.complete(jobs[100:]))
    record = sent[1][0]
    assert record.startswith("HF.W.1.")
    assert sent == [["HF.S.c.1.frontier"], [record], [record], [record]]


async def test_a_large_backlog_is_read_once_by_many_claims(backend: NatsBackend, asked: list[str]) -> None:
    await subscribe(backend)
    await publish(backend, *(f"e-{n}" for n in range(400)))
    asked.clear()
    for _ in range(40):
        assert len(await claim(backend, 10)) == 10
    assert sum(f"'next_by_subj': '{CHANNEL}'" in each for each in asked) == 1


async def test_an_idle_consumer_is_read_from_where_the_log_was_last_seen_to_end(
    backend: NatsBackend, asked: list[str]
) -> None:
    """The server walks through all that stands behind the sequence that it is asked for."""
    await subscribe(backend)
    assert await claim(backend) == []
    await backend.log.publish("others", [Event(n, f"e-{n}") for n in range(100)])
    for _ in range(2):  # one learns how far the log goes, and one that there is nothing up to there
        assert await claim(backend) == []
    asked.clear()
    assert await claim(backend) == []
    begins = [int(found[1]) for each in asked if (found := re.search(r"'seq': (\d+), 'next_by_subj'", each))]
    assert len(begins) == 3
    assert min(begins) > 100


async def test_a_publisher_does_not_read_the_jobs(backend: NatsBackend, asked: list[str]) -> None:
    await subscribe(backend)
    await publish(backend, *(f"e-{n}" for n in range(100)))
    await backend.leases.claim(CHANNEL, CONSUMER, 100, "w")
    publisher = backend.fork()
    await publisher.open()
    await publish(publisher, "a")
    assert publisher._store.mirror.queues.jobs == {}
    assert publisher._store.mirror.frontiers == {}
    assert await questions(asked, lambda: publish(publisher, "b")) == 1
    await publisher.close()


async def test_a_publisher_to_a_bounded_consumer_makes_no_jobs_and_looks_into_none(
    backend: NatsBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It counts what is in the log: who makes jobs gets into the way of workers."""
    await subscribe(backend, max_depth=6)
    publisher = backend.fork()
    await publisher.open()
    await publish(backend, "a", "b")
    assert len(await claim(backend)) == 2
    decoded, committed, commit = list[int](), set[str](), Batches.commit

    async def watched(self: Batches, messages: Sequence[BatchMessage], *given: Any) -> int:
        committed.update(subject_kind(message.subject) for message in messages)
        return await commit(self, messages, *given)

    monkeypatch.setattr(Batches, "commit", watched)
    monkeypatch.setattr(job_records, "decode", lambda data, revision: decoded.append(revision))
    try:
        await publish(publisher, "c")
        await publish(publisher, "d", "e", "f")
        assert committed == {"HF.K", "HF.J", CHANNEL}
        assert decoded == []
        monkeypatch.undo()
        with pytest.raises(Overloaded, match="holds 6 live jobs"):
            await publish(publisher, "g")
    finally:
        await publisher.close()


def subject_kind(subject: str) -> str:
    return ".".join(subject.split(".")[:2]) if subject.startswith("HF.") else subject


async def test_a_claim_of_jobs_with_gaps_between_them_reads_their_events_at_once(
    backend: NatsBackend, asked: list[str]
) -> None:
    await subscribe(backend)
    names = [f"e-{n}" for n in range(60)]
    await publish(backend, *names)
    few = await questions(asked, lambda: backend.leases.claim(CHANNEL, CONSUMER, 1, "w"))
    for name in names[2::2]:
        assert await backend.leases.cancel(CHANNEL, "default", name, None) == 1
    assert await questions(asked, lambda: backend.leases.claim(CHANNEL, CONSUMER, 30, "w")) <= few


async def test_counts_of_the_dead_cost_the_same_however_many_there_are(
    backend: NatsBackend, asked: list[str]
) -> None:
    await subscribe(backend)
    await die(backend, 10, clusters=2)
    assert await questions(asked, backend.deadletters.counts) == 2
    few = await questions(asked, lambda: backend.deadletters.clusters(None, None, 10))
    await die(backend, 900, "more", clusters=2)
    assert await questions(asked, backend.deadletters.counts) == 2
    assert await questions(asked, lambda: backend.deadletters.clusters(None, None, 10)) == few <= 5
    assert await counted(backend) == (910, 910)


async def test_a_page_of_the_dead_costs_little_wherever_it_is(backend: NatsBackend, asked: list[str]) -> None:
    await subscribe(backend)
    await die(backend, 450, "old", clusters=450)
    await publish(backend, *(f"quiet-{n}" for n in range(2000)))
    while jobs := await backend.leases.claim(CHANNEL, CONSUMER, 900, "w"):
        assert all(await backend.leases.complete(jobs))
    await die(backend, 450, "new")
    wanted, after, pages = DeadFilter(CHANNEL, CONSUMER), None, 0
    for _ in range(100):
        asked.clear()
        page = await backend.deadletters.page(wanted, after, 50)
        pages, after = pages + len(page.letters), page.after
        assert len(asked) <= 14, asked
        if after is None:
            break
    assert pages == 900
    rare = DeadFilter(CHANNEL, CONSUMER, fingerprint=f"{7:016x}")
    assert await questions(asked, lambda: backend.deadletters.page(rare, None, 50)) <= 12
    asked.clear()
    assert (await backend.deadletters.page(DeadFilter(text="no such"), None, 50)).letters == []
    assert len(asked) <= 30, "two records of a hundred in one answer"


@pytest.mark.slow
async def test_thousands_of_clusters_fit(backend: NatsBackend) -> None:
    await subscribe(backend)
    ids = await die(backend, 6000, clusters=6000)
    assert len(await backend.deadletters.clusters(CHANNEL, CONSUMER, 10_000)) == 6000
    tallies = await backend._store.connection.last(["HF.S.c.*.cluster.>"])
    assert max(len(each.data) for each in tallies) < 16_000
    for start in range(0, 6000, 1000):
        assert all(await backend.deadletters.purge(CHANNEL, CONSUMER, ids[start : start + 1000]))
    assert await backend.deadletters.clusters(None, None, 10) == []


async def test_a_claim_of_an_ordered_consumer_makes_jobs_of_the_beginning_only(backend: NatsBackend) -> None:
    await subscribe(backend, ordered=True)
    names = [f"e-{n}" for n in range(2000)]
    await publish(backend, *names)
    claimed = ids(await claim(backend, 10))
    assert len(backend._store.mirror.queues.jobs) < 1000
    claimed += ids(await claim(backend, 900))
    while jobs := await claim(backend, 500):
        claimed += ids(jobs)
    assert claimed == names


async def test_a_claim_goes_on_until_it_finds_work(backend: NatsBackend) -> None:
    await subscribe(backend)
    await publish(backend, *(f"l-{n}" for n in range(1000)), at=await backend.now() + timedelta(days=1))
    await publish(backend, "now")
    assert ids(await claim(backend, 10)) == ["now"]
