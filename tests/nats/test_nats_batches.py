"""Batches: a stale one is refused whole, several processes agree, and large publishes are all or none."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest
from nats.aio.client import Client

from holdfast.backends.nats import NatsBackend
from holdfast.backends.nats.state import publish_outcome
from holdfast.backends.nats.state.publisher import BatchPublisher
from holdfast.backends.nats.wire import subjects
from holdfast.backends.nats.wire.batches import Batches, Stale, state
from holdfast.backends.nats.wire.connection import NatsConnection
from holdfast.embedded import Nats
from holdfast.model.errors import Unavailable
from holdfast.model.states import State
from kit import CHANNEL, CONSUMER, bury, claim, claim_one, ids, publish, read_all, states, subscribe


async def test_a_stale_batch_is_refused_whole(backend: NatsBackend, relaxed_nats: Nats) -> None:
    connection = NatsConnection(relaxed_nats.url)
    await connection.open()
    try:
        batches = Batches(connection)
        last = await batches.commit([state("HF.X.a", b"1", 0), state("HF.X.b", b"1", 0)])
        with pytest.raises(Stale):
            await batches.commit([state("HF.X.a", b"2", last - 1), state("HF.X.b", b"2", last - 1)])
        found, _ = await connection.read({"multi_last": ["HF.X.a", "HF.X.b"], "batch": 2})
        assert [(message.seq, message.data) for message in found] == [(last - 1, b"1"), (last, b"1")]
    finally:
        await connection.close()


async def test_batches_that_nobody_ends_are_waited_for(backend: NatsBackend, client: Client) -> None:
    """The server takes fifty unfinished ones, and gives each up after ten seconds."""
    await publish(backend, "a")
    for number in range(50):
        headers = {subjects.BATCH: f"left-{number}", subjects.BATCH_SEQUENCE: "1"}
        await client.request(CHANNEL, b"", headers=headers)
    await publish(backend, "b")
    assert [entry.event.id for entry in await read_all(backend)] == ["a", "b"]


async def test_processes_share_the_jobs_out_and_count_exactly(backend: NatsBackend) -> None:
    await subscribe(backend)
    others = [backend.fork() for _ in range(3)]
    for other in others:
        await other.open()

    async def work(worker: NatsBackend) -> list[str]:
        mine: list[str] = []
        while jobs := await worker.leases.claim(CHANNEL, CONSUMER, 20, "w"):
            assert await worker.leases.complete(jobs) == [True] * len(jobs)
            mine += ids(jobs)
        return mine

    try:
        names = [f"e-{n}" for n in range(300)]
        await asyncio.gather(*(publish(each, *names) for each in (backend, *others)))
        done = [name for mine in await asyncio.gather(*map(work, others)) for name in mine]
        assert sorted(done) == sorted(names)
        assert await states(backend) == {State.DONE: 300}
    finally:
        for other in others:
            await other.close()
    assert await states(backend) == {State.DONE: 300}, "their counts were left to all"


async def test_a_publish_of_several_batches_appears_whole(backend: NatsBackend) -> None:
    await subscribe(backend)
    names = [f"e-{n}" for n in range(1100)]
    receipts = await publish(backend, *names)
    found = await read_all(backend)
    assert [entry.event.id for entry in found] == names
    assert [entry.position for entry in found] == [receipt.position for receipt in receipts]
    assert all(receipt.duplicate for receipt in await publish(backend, *names))


async def test_a_publish_that_lost_its_publisher_never_happened(
    backend: NatsBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    await subscribe(backend)
    send, sent = BatchPublisher._send, 0

    async def breaks(self: BatchPublisher, *arguments: object) -> None:
        nonlocal sent
        sent += 1
        if sent == 3:
            raise Unavailable("gone in the middle")
        await send(self, *arguments)  # type: ignore[arg-type]

    names = [f"e-{n}" for n in range(1100)]
    with monkeypatch.context() as patch:
        patch.setattr(BatchPublisher, "_send", breaks)
        patch.setattr(publish_outcome.PublishOutcomes, "abort", lambda *_: asyncio.sleep(0))
        with pytest.raises(Unavailable):
            await publish(backend, *names)
    await publish(backend, "later")
    assert await read_all(backend) == [], "it may still be committed, below what came later"
    monkeypatch.setattr(publish_outcome, "PATIENCE", 0)
    assert [entry.event.id for entry in await read_all(backend)] == ["later"]
    assert not any(receipt.duplicate for receipt in await publish(backend, *names))
    assert sorted(ids(await claim(backend, 900)) + ids(await claim(backend, 900))) == sorted(
        ["later", *names]
    )


async def test_a_channel_that_somebody_took_out_of_the_stream_is_captured_again(
    backend: NatsBackend, client: Client
) -> None:
    await backend.channels.create("dead")
    await subscribe(backend, dead_letter="dead")
    await publish(backend, "a")
    job = await claim_one(backend)
    config = (await client.jetstream().stream_info("HOLDFAST")).config
    config.subjects = ["HF.>"]
    await client.jetstream().update_stream(config)
    assert await bury(backend, job), "its copy goes to a channel that is not captured"
    await publish(backend, "b")
    assert [entry.event.id for entry in await read_all(backend)] == ["a", "b"]
    assert len(await read_all(backend, "dead")) == 1


async def test_what_is_settled_leaves_nothing_to_mirror(backend: NatsBackend, client: Client) -> None:
    await subscribe(backend)
    await publish(backend, *(f"e-{n}" for n in range(50)))
    assert all(await backend.leases.complete(await claim(backend)))
    other = backend.fork()
    await other.open()
    assert await claim(other) == []
    assert other._store.mirror.queues.jobs == {}
    await other.close()


async def test_the_clock_is_the_servers_and_moves_only_by_advance(backend: NatsBackend) -> None:
    other = backend.fork()
    await other.open()
    before = await backend.now()
    assert timedelta(0) <= await other.now() - before < timedelta(seconds=5)
    times = [await backend.now() for _ in range(50)]
    assert times == sorted(times)
    await backend.advance(timedelta(days=3))
    assert timedelta(days=3) <= await other.now() - before < timedelta(days=3, seconds=30)
    [receipt] = await publish(other, "a")
    [entry] = await read_all(other)
    assert entry.event.time is not None
    assert entry.event.time - before >= timedelta(days=3), "events are stamped in the store's time"
    assert entry.position == receipt.position
    await other.close()
