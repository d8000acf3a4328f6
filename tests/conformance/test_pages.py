"""Pages: the log by column, in its order, pure, whatever happens around."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest
from bulklog import NAMES, SHAPES, as_read, ids, last, micros, rows

from holdfast.contracts import Backend
from holdfast.model.event import MAX_DATA, Event
from kit import CHANNEL, MINUTE, bury, claim, complete, publish, read_all, step, subscribe


@pytest.mark.parametrize("size", [1, 7, 60, 1000])
async def test_pages_are_the_log_in_its_order_whatever_their_size(backend: Backend, size: int) -> None:
    for at in range(0, 60, 20):
        await publish(backend, *NAMES[at : at + 20])
    assert await rows(backend, None, await last(backend), size) == as_read(await read_all(backend))


@pytest.mark.parametrize("event", SHAPES, ids=[event.id for event in SHAPES])
async def test_every_attribute_is_kept(backend: Backend, event: Event) -> None:
    await backend.log.publish(CHANNEL, [event])
    [entry] = await read_all(backend)
    assert (entry.event.id, entry.event.data, entry.event.key) == (event.id, event.data, event.key)
    assert await rows(backend, None, entry.position) == as_read([entry])


async def test_all_shapes_side_by_side(backend: Backend) -> None:
    for event in SHAPES:
        await backend.log.publish(CHANNEL, [event])
    await backend.log.publish(CHANNEL, [event._replace(id=f"{event.id} again") for event in SHAPES])
    found = as_read(await read_all(backend))
    assert len(found) == 2 * len(SHAPES)
    assert await rows(backend, None, await last(backend), 5) == found


async def test_the_time_of_publishing_stands_in_for_one_that_was_not_given(backend: Backend) -> None:
    await backend.advance(timedelta(days=400))
    before = await backend.now()
    await publish(backend, "a")
    [row] = await rows(backend, None, await last(backend))
    assert micros(before) <= row[5] <= micros(await backend.now())


async def test_large_events_come_whole(backend: Backend) -> None:
    large = bytes(range(256)) * (MAX_DATA // 256)
    await publish(backend, "before")
    await backend.log.publish(
        CHANNEL, [Event(large, f"l-{n}", key="k", headers={"n": str(n)}) for n in range(3)]
    )
    await publish(backend, "after")
    end = await last(backend)
    assert await rows(backend, None, end, 2) == as_read(await read_all(backend, page=10))
    assert [len(row[7]) for row in await rows(backend, None, end)] == [15, MAX_DATA, MAX_DATA, MAX_DATA, 14]


async def test_ranges_begin_after_and_end_with(backend: Backend) -> None:
    places = [receipt.position for receipt in await publish(backend, *NAMES)]
    assert await ids(backend, None, places[0]) == NAMES[:1]
    assert await ids(backend, None, places[20]) == NAMES[:21]
    assert await ids(backend, places[20], places[40], 7) == NAMES[21:41]
    assert await ids(backend, places[58], places[59]) == NAMES[59:]
    assert await ids(backend, places[59], places[59]) == []
    assert await ids(backend, places[40], places[20]) == []


async def test_the_end_of_a_range_may_be_anywhere_in_a_page(backend: Backend) -> None:
    places = [receipt.position for receipt in await publish(backend, *NAMES)]
    for end in (9, 10, 11):
        assert await ids(backend, None, places[end], 10) == NAMES[: end + 1]


async def test_a_range_is_pure(backend: Backend) -> None:
    places = [receipt.position for receipt in await publish(backend, *NAMES)]
    first = await rows(backend, places[3], places[50], 9)
    await publish(backend, *(f"later-{n}" for n in range(30)))
    await subscribe(backend, start="earliest")
    while (await step(backend)).backfilled:
        continue
    assert all(await backend.leases.complete(await claim(backend, 40)))
    for size in (9, 1000):
        assert await rows(backend, places[3], places[50], size) == first


async def test_an_unknown_channel_has_no_pages(backend: Backend) -> None:
    [receipt] = await publish(backend, "a")
    assert await rows(backend, None, receipt.position, channel="nowhere") == []
    await backend.channels.create("empty")
    assert await rows(backend, None, receipt.position, channel="empty") == []


async def test_a_reader_may_leave_early(backend: Backend) -> None:
    await publish(backend, *NAMES)
    pages = backend.log.pages(CHANNEL, None, await last(backend), 10)
    async for page in pages:
        assert page.ids == NAMES[:10]
        break
    await pages.aclose()  # type: ignore[attr-defined]
    assert await ids(backend, None, await last(backend)) == NAMES


async def test_readers_do_not_disturb_each_other(backend: Backend) -> None:
    await publish(backend, *NAMES)
    end = await last(backend)
    found = await asyncio.gather(*(ids(backend, None, end, size) for size in (1, 2, 3, 5, 8, 13)))
    assert found == [NAMES] * 6


async def test_a_reader_in_another_process_sees_the_same(backend: Backend) -> None:
    await publish(backend, *NAMES)
    await subscribe(backend)
    end, other = await last(backend), backend.fork()
    await other.open()
    try:
        assert await other.log.extent(CHANNEL) == await backend.log.extent(CHANNEL)
        assert await other.log.cuts(CHANNEL, None, 1000, 20) == await backend.log.cuts(
            CHANNEL, None, 1000, 20
        )
        assert await rows(other, None, end, 7) == await rows(backend, None, end, 7)
    finally:
        await other.close()


async def test_other_channels_and_jobs_in_between_change_nothing(backend: Backend) -> None:
    await backend.channels.create("dead")
    await subscribe(backend, dead_letter="dead")
    await subscribe(backend, "mail")
    for turn in range(6):
        await publish(backend, *NAMES[turn * 10 : turn * 10 + 10])
        await publish(backend, *(f"r-{turn}-{n}" for n in range(7)), channel="refunds")
        [first, *others] = await claim(backend, 5)
        assert await bury(backend, first)
        for job in others:
            assert await complete(backend, job)
        await claim(backend, 3, consumer="mail")
        await backend.advance(10 * MINUTE)
        await step(backend)
    end = await last(backend)
    assert await ids(backend, None, end, 25) == NAMES
    assert sum(cut.rows for cut in await backend.log.cuts(CHANNEL, None, 1000, 9)) == 60
    assert (await backend.log.behind(CHANNEL, None, 1000)).events == 60
    assert len(await rows(backend, None, await last(backend, "refunds"), channel="refunds")) == 42
    assert len(await rows(backend, None, await last(backend, "dead"), channel="dead")) == 6


async def test_a_reader_that_follows_live_publishes_misses_nothing(backend: Backend) -> None:
    # I14: an end that was told is final, however many publishes overlap.
    seen: list[str] = []

    async def publisher(number: int) -> None:
        for turn in range(30):
            await backend.log.publish(CHANNEL, [Event(turn, f"{number}-{turn}-{n}") for n in range(turn % 3)])

    async def follow() -> None:
        position: str | None = None
        while len(seen) < 120:
            end = (await backend.log.extent(CHANNEL)).last
            if end is not None and end != position:
                cuts = await backend.log.cuts(CHANNEL, position, 1000, 10, end)
                found = await ids(backend, position, end, 25)
                assert sum(cut.rows for cut in cuts) == len(found)
                assert cuts[-1].position == end
                seen.extend(found)
                position = end

    async with asyncio.timeout(60):
        await asyncio.gather(follow(), *(publisher(number) for number in range(4)))
    assert seen == [entry.event.id for entry in await read_all(backend)]
    assert len(seen) == len(set(seen)) == 120


async def test_a_large_publish_shows_whole_or_not_at_all(backend: Backend) -> None:
    names = [f"b-{n}" for n in range(2500)]
    await publish(backend, "a")
    publishing = asyncio.ensure_future(publish(backend, *names))
    counts = set[int]()
    while not publishing.done():
        found = await ids(backend, None, await last(backend))
        assert found == ["a", *names][: len(found)]
        counts.add(len(found))
    await publishing
    counts.add(len(await ids(backend, None, await last(backend))))
    assert counts <= {1, 2501}
    assert 2501 in counts
