"""Stream consumers: a cursor at its start, moved by compare and swap, and gone when detached."""

from __future__ import annotations

import asyncio

import pytest

import holdfast
from holdfast.contracts import Backend
from holdfast.model.event import Event
from kit import CHANNEL, MINUTE, publish, read_all
from stores import Store

SINK = "archiver"


async def after(backend: Backend, position: str | None) -> list[str]:
    """The events that follow a cursor."""
    return [entry.event.id for entry in await backend.log.read(CHANNEL, position, 1000)]


async def test_it_starts_at_the_beginning_unless_told_otherwise(backend: Backend) -> None:
    await publish(backend, "a", "b")
    before = await backend.now()
    cursor = await backend.cursors.attach(CHANNEL, SINK)
    assert (cursor.channel, cursor.name, cursor.position) == (CHANNEL, SINK, None)
    assert before <= cursor.moved_at <= await backend.now()
    assert await backend.cursors.all(CHANNEL) == [cursor]


async def test_latest_starts_after_what_is_there(backend: Backend) -> None:
    await publish(backend, "a", "b")
    cursor = await backend.cursors.attach(CHANNEL, SINK, "latest")
    await publish(backend, "c")
    assert await after(backend, cursor.position) == ["c"]


async def test_latest_on_an_empty_channel_misses_nothing(backend: Backend) -> None:
    cursor = await backend.cursors.attach(CHANNEL, SINK, "latest")
    await publish(backend, "a")
    assert await after(backend, cursor.position) == ["a"]


async def test_a_time_starts_at_the_first_event_from_then_on(backend: Backend) -> None:
    await publish(backend, "a")
    await backend.advance(MINUTE)
    time = await backend.now()
    for name in ("b", "c"):
        await publish(backend, name)
        await backend.advance(MINUTE)
    cursor = await backend.cursors.attach(CHANNEL, SINK, time)
    assert await after(backend, cursor.position) == ["b", "c"]


async def test_a_time_before_everything_is_the_beginning(backend: Backend) -> None:
    time = await backend.now()
    await backend.advance(MINUTE)
    await publish(backend, "a", "b")
    cursor = await backend.cursors.attach(CHANNEL, SINK, time)
    assert await after(backend, cursor.position) == ["a", "b"]


async def test_a_start_at_the_beginning_of_a_trimmed_log_is_where_it_begins_now(backend: Backend) -> None:
    await publish(backend, "a", "b")
    await backend.advance(MINUTE)
    lock = await backend.locks.acquire("gbe:lock:sweeper", "me", 10 * MINUTE)
    assert lock is not None
    assert (await backend.retention.trim(CHANNEL, await backend.now(), 100, lock)).removed == 2
    cursor = await backend.cursors.attach(CHANNEL, SINK)
    [receipt] = await publish(backend, "c")
    pages = [page async for page in backend.log.pages(CHANNEL, cursor.position, receipt.position, 10)]
    assert [page.ids for page in pages] == [["c"]]


async def test_attaching_again_answers_the_one_that_is_there(backend: Backend) -> None:
    [first, _] = await publish(backend, "a", "b")
    await backend.cursors.attach(CHANNEL, SINK)
    assert await backend.cursors.move(CHANNEL, SINK, None, first.position)
    await backend.advance(MINUTE)
    [moved] = await backend.cursors.all(CHANNEL)
    assert await backend.cursors.attach(CHANNEL, SINK, "latest") == moved
    assert moved.position == first.position


@pytest.mark.concurrency
async def test_many_that_attach_at_once_get_the_same_one(backend: Backend) -> None:
    await publish(backend, "a")
    cursors = await asyncio.gather(*(backend.cursors.attach(CHANNEL, SINK, "latest") for _ in range(8)))
    assert len(set(cursors)) == 1
    assert await backend.cursors.all(CHANNEL) == cursors[:1]


async def test_a_move_goes_from_where_it_is_expected(backend: Backend) -> None:
    [a, b, c] = await publish(backend, "a", "b", "c")
    created = await backend.cursors.attach(CHANNEL, SINK)
    await backend.advance(MINUTE)
    assert await backend.cursors.move(CHANNEL, SINK, None, a.position)
    assert not await backend.cursors.move(CHANNEL, SINK, None, b.position), "it stands elsewhere by now"
    assert not await backend.cursors.move(CHANNEL, SINK, b.position, c.position)
    assert await backend.cursors.move(CHANNEL, SINK, a.position, c.position)
    [cursor] = await backend.cursors.all()
    assert cursor.position == c.position
    assert cursor.moved_at >= created.moved_at + MINUTE


async def test_a_move_never_goes_back_or_nowhere(backend: Backend) -> None:
    [a, b] = await publish(backend, "a", "b")
    await backend.cursors.attach(CHANNEL, SINK)
    assert await backend.cursors.move(CHANNEL, SINK, None, b.position)
    [before] = await backend.cursors.all(CHANNEL)
    await backend.advance(MINUTE)
    assert not await backend.cursors.move(CHANNEL, SINK, b.position, a.position)
    assert not await backend.cursors.move(CHANNEL, SINK, b.position, b.position)
    assert await backend.cursors.all(CHANNEL) == [before]


@pytest.mark.concurrency
async def test_of_two_movers_from_one_place_one_wins(backend: Backend) -> None:
    receipts = await publish(backend, *(f"e-{n}" for n in range(8)))
    await backend.cursors.attach(CHANNEL, SINK)
    moves = await asyncio.gather(*(backend.cursors.move(CHANNEL, SINK, None, r.position) for r in receipts))
    assert moves.count(True) == 1
    [cursor] = await backend.cursors.all(CHANNEL)
    assert cursor.position == receipts[moves.index(True)].position


async def test_a_stream_consumer_that_is_not_there_is_not_found(backend: Backend) -> None:
    [receipt] = await publish(backend, "a")
    with pytest.raises(holdfast.NotFound, match=SINK):
        await backend.cursors.move(CHANNEL, SINK, None, receipt.position)
    with pytest.raises(holdfast.NotFound, match=SINK):
        await backend.cursors.move("nowhere", SINK, None, receipt.position)
    assert not await backend.cursors.detach(CHANNEL, SINK)
    assert not await backend.cursors.detach("nowhere", SINK)
    assert await backend.cursors.all("nowhere") == []


async def test_what_is_no_position_is_refused_by_name(backend: Backend) -> None:
    await backend.cursors.attach(CHANNEL, SINK)
    with pytest.raises(holdfast.InvalidInput, match="nonsense"):
        await backend.cursors.move(CHANNEL, SINK, None, "nonsense")
    with pytest.raises(holdfast.InvalidInput, match="nonsense"):
        await backend.cursors.move(CHANNEL, SINK, "nonsense", "nonsense")


async def test_a_detached_one_starts_anew(backend: Backend) -> None:
    [a, _] = await publish(backend, "a", "b")
    await backend.cursors.attach(CHANNEL, SINK)
    assert await backend.cursors.move(CHANNEL, SINK, None, a.position)
    assert await backend.cursors.detach(CHANNEL, SINK)
    assert not await backend.cursors.detach(CHANNEL, SINK)
    assert await backend.cursors.all() == []
    assert (await backend.cursors.attach(CHANNEL, SINK)).position is None


async def test_they_are_listed_by_channel_and_name(backend: Backend) -> None:
    for channel, name in (("refunds", "ingest"), ("orders", "ingest"), ("orders", "archiver")):
        await backend.cursors.attach(channel, name)
    listed = [(cursor.channel, cursor.name) for cursor in await backend.cursors.all()]
    assert sorted(listed) == [("orders", "archiver"), ("orders", "ingest"), ("refunds", "ingest")]
    assert {cursor.name for cursor in await backend.cursors.all("orders")} == {"archiver", "ingest"}


async def test_a_cursor_follows_live_publishes_and_misses_nothing(backend: Backend) -> None:
    """Attached in the midst of publishes: what was not there yet follows its cursor, and nothing twice."""
    started = asyncio.Event()

    async def publisher(number: int) -> None:
        for turn in range(30):
            await backend.log.publish(CHANNEL, [Event(turn, f"{number}-{turn}")])
            started.set()

    publishers = asyncio.gather(*(publisher(number) for number in range(4)))
    await started.wait()
    seen = {entry.event.id for entry in await read_all(backend)}
    cursor = await backend.cursors.attach(CHANNEL, SINK, "latest")
    await publishers
    following = await after(backend, cursor.position)
    everything = [entry.event.id for entry in await read_all(backend)]
    assert len(everything) == 120
    assert everything[len(everything) - len(following) :] == following
    assert len(following) < 120 or not seen


async def test_cursors_outlive_a_restore(store: Store, backend: Backend) -> None:
    [a, b] = await publish(backend, "a", "b")
    await backend.cursors.attach(CHANNEL, SINK)
    assert await backend.cursors.move(CHANNEL, SINK, None, a.position)
    await store.become_restored()
    reborn = backend.fork()
    await reborn.open()
    try:
        [c] = await publish(reborn, "c")
        [cursor] = await reborn.cursors.all(CHANNEL)
        assert cursor.position == a.position
        assert await after(reborn, cursor.position) == ["b", "c"]
        assert await reborn.cursors.move(CHANNEL, SINK, a.position, c.position), (
            "a new life sorts after the old"
        )
        assert not await reborn.cursors.move(CHANNEL, SINK, c.position, b.position)
    finally:
        await reborn.close()
