"""Bulk reading on NATS: without the jobs, with foreign events, and past what was never committed."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest
from nats.aio.client import Client

from holdfast.backends.nats import NatsBackend
from holdfast.backends.nats.state import publish_outcome
from holdfast.backends.nats.state.publisher import BatchPublisher
from holdfast.model.errors import DataLost, Unavailable
from holdfast.model.event import MAX_DATA, Event
from holdfast.model.log import Extent
from holdfast.model.states import State
from kit import CHANNEL, MINUTE, claim, publish, read_all, state, subscribe

ABORTED = [f"gone-{n}" for n in range(1100)]


async def page_ids(backend: NatsBackend, after: str | None, until: str, size: int = 1000) -> list[str]:
    return [name async for page in backend.log.pages(CHANNEL, after, until, size) for name in page.ids]


async def lose(backend: NatsBackend, monkeypatch: pytest.MonkeyPatch, *, decided: bool = True) -> None:
    """A publish of several batches whose publisher goes away in the middle, and perhaps its abort with it."""
    send, sent = BatchPublisher._send, 0

    async def breaks(self: BatchPublisher, *arguments: object) -> None:
        nonlocal sent
        sent += 1
        if sent == 3:
            raise Unavailable("gone in the middle")
        await send(self, *arguments)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(BatchPublisher, "_send", breaks)
        if not decided:
            patch.setattr(publish_outcome.PublishOutcomes, "abort", lambda *_: asyncio.sleep(0))
        with pytest.raises(Unavailable):
            await publish(backend, *ABORTED)


async def test_a_reader_never_loads_the_jobs(backend: NatsBackend) -> None:
    await subscribe(backend)
    receipts = await publish(backend, *(f"e-{n}" for n in range(200)))
    await claim(backend, 200)
    reader = backend.fork()
    await reader.open()
    try:
        extent = await reader.log.extent(CHANNEL)
        assert extent.last == receipts[-1].position
        assert sum(cut.rows for cut in await reader.log.cuts(CHANNEL, None, 1000, 50)) == 200
        assert len(await page_ids(reader, None, receipts[-1].position)) == 200
        assert (await reader.log.behind(CHANNEL, None, 1000)).events == 200
        assert await reader.log.seek(CHANNEL, await reader.now()) == receipts[-1].position
        await reader.cursors.attach(CHANNEL, "archiver")
        assert await reader.cursors.move(CHANNEL, "archiver", None, receipts[0].position)
        assert await reader.locks.acquire("gbe:lock:archiver", "me", MINUTE) is not None
        assert reader._store.mirror.frontiers == {}
        assert reader._store.mirror.queues.jobs == {}
        assert await reader.leases.stuck(10) == [], "what needs the jobs loads them"
        assert len(reader._store.mirror.queues.jobs) == 0, "they wait in the log"
        assert len(reader._store.mirror.frontiers) == 1
    finally:
        await reader.close()


async def test_foreign_events_are_in_pages_and_cuts(backend: NatsBackend, client: Client) -> None:
    await publish(backend, "ours")
    js = client.jetstream()
    ack = await js.publish(CHANNEL, b"1", headers={"trace": "x", "ce-time": "yesterday"})
    await js.publish(CHANNEL, b"2", headers={"ce-id": "größe", "ce-partitionkey": "k", "ce-type": "t"})
    await client.publish(CHANNEL, b"3")
    await publish(backend, "ours-too")
    entries = await read_all(backend)
    end = (await backend.log.extent(CHANNEL)).last
    assert end == entries[-1].position
    pages = [page async for page in backend.log.pages(CHANNEL, None, end, 3)]
    assert [name for page in pages for name in page.ids] == [entry.event.id for entry in entries]
    assert pages[0].ids == ["ours", str(ack.seq), "größe"]
    assert dict(pages[0].headers[1]) == {"trace": "x"}
    assert pages[0].times[1] > 0, "a time that cannot be read is none"
    assert (pages[0].keys[2], pages[0].types[2]) == ("k", "t")
    assert [cut.rows for cut in await backend.log.cuts(CHANNEL, None, 10, 2)] == [2, 2, 1]


async def test_what_was_never_committed_is_not_counted(
    backend: NatsBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    [a] = await publish(backend, "a")
    await lose(backend, monkeypatch)
    extent = await backend.log.extent(CHANNEL)
    assert extent == Extent(None, a.position, a.position), "the end is an event"
    assert await backend.log.seek(CHANNEL, await backend.now() + MINUTE) == a.position
    assert await backend.log.behind(CHANNEL, a.position, 10_000) == await backend.log.behind(
        "nowhere", None, 1
    )
    assert await backend.log.cuts(CHANNEL, a.position, 10_000, 100) == []
    receipts = await publish(backend, *(f"b-{n}" for n in range(100)))
    cuts = await backend.log.cuts(CHANNEL, None, 10_000, 20)
    assert (sum(cut.rows for cut in cuts), cuts[-1].position) == (101, receipts[-1].position)
    assert len(await page_ids(backend, None, receipts[-1].position)) == 101
    assert (await backend.log.behind(CHANNEL, None, 10_000)).events == 101
    lock = await backend.locks.acquire("sweeper", "me", MINUTE)
    assert lock is not None
    await backend.advance(timedelta(seconds=1))
    step = await backend.retention.trim(CHANNEL, await backend.now(), 50, lock)
    assert (step.removed, step.more) == (50, True)
    assert (await backend.retention.trim(CHANNEL, await backend.now(), 1000, lock)).removed == 51
    assert (await backend._store.connection.last(["HF.A.>"])) == [], "nor is it remembered for good"


async def test_nothing_passes_what_is_under_way(
    backend: NatsBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    [a] = await publish(backend, "a")
    await lose(backend, monkeypatch, decided=False)
    [b] = await publish(backend, "b")
    assert await backend.log.extent(CHANNEL) == Extent(None, a.position, a.position)
    assert [cut.rows for cut in await backend.log.cuts(CHANNEL, None, 10, 10)] == [1]
    assert (await backend.log.behind(CHANNEL, None, 10)).events == 1
    assert await backend.log.seek(CHANNEL, await backend.now() + MINUTE) == a.position
    cursor = await backend.cursors.attach(CHANNEL, "archiver", "latest")
    assert cursor.position == a.position
    reading = asyncio.ensure_future(page_ids(backend, None, b.position))
    monkeypatch.setattr(publish_outcome, "PATIENCE", 0)  # its publisher is given up
    assert await reading == ["a", "b"], "what is under way in a range is waited for"
    assert (await backend.log.extent(CHANNEL)).last == b.position


async def test_large_events_leave_with_their_parts(backend: NatsBackend) -> None:
    for channel in (CHANNEL, "refunds"):
        await backend.log.publish(channel, [Event(b"x" * MAX_DATA, "large")])
    await publish(backend, "later")
    lock = await backend.locks.acquire("sweeper", "me", MINUTE)
    assert lock is not None
    await backend.advance(timedelta(seconds=1))
    assert (await backend.retention.trim(CHANNEL, await backend.now(), 1, lock)).removed == 1
    assert await backend._store.connection.last([f"HF.P.{CHANNEL}"]) == []
    assert len(await backend._store.connection.last(["HF.P.refunds"])) == 1
    [kept] = await read_all(backend, "refunds")
    assert len(kept.event.data) == MAX_DATA, "those of other channels stay"


async def test_an_event_without_all_its_parts_is_never_served(backend: NatsBackend, client: Client) -> None:
    await subscribe(backend)
    [large] = await backend.log.publish(CHANNEL, [Event(b"x" * MAX_DATA, "large")])
    await client.jetstream().purge_stream("HOLDFAST", subject=f"HF.P.{CHANNEL}", keep=1)
    with pytest.raises(DataLost, match=CHANNEL):
        await backend.log.read(CHANNEL, None, 10)
    with pytest.raises(DataLost, match=CHANNEL):
        await page_ids(backend, None, large.position)
    assert await claim(backend) == []
    assert await state(backend, "large") is State.DEAD
