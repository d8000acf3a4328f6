"""The log in bulk: its extent, cuts that add up, and how far behind a position is."""

from __future__ import annotations

import tracemalloc
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import pytest
from bulklog import NAMES, SHAPES, TIME, as_read, ids, last, restored, rows

import holdfast
from holdfast.contracts import Backend
from holdfast.model.event import MAX_DATA, Event
from holdfast.model.log import Cut, Extent, Lag, Part, Waiting
from kit import CHANNEL, MINUTE, publish, read_all, subscribe
from stores import Store

# extent and seek


async def test_an_unknown_or_an_empty_channel_has_no_extent(backend: Backend) -> None:
    assert await backend.log.extent("nowhere") == Extent(None, None, None)
    await backend.channels.create(CHANNEL)
    await subscribe(backend)
    await publish(backend, "elsewhere", channel="refunds")
    assert await backend.log.extent(CHANNEL) == Extent(None, None, None)


async def test_the_extent_goes_from_the_first_event_to_the_last(backend: Backend) -> None:
    [a] = await publish(backend, "a")
    assert await backend.log.extent(CHANNEL) == Extent(None, a.position, a.position)
    receipts = await publish(backend, *NAMES)
    assert await backend.log.extent(CHANNEL) == Extent(None, a.position, receipts[-1].position)
    [again, b] = await publish(backend, "a", "b")
    assert (await backend.log.extent(CHANNEL)).last == b.position > again.position


async def test_a_time_is_found_between_the_events_around_it(backend: Backend) -> None:
    start, places = await backend.now(), list[tuple[datetime, str]]()
    for name in NAMES[:6]:
        await backend.advance(MINUTE)
        await publish(backend, f"{name}-x", channel="refunds")
        receipts = await publish(backend, name, f"{name}-too")
        places.append((await backend.now(), receipts[1].position))
    assert await backend.log.seek(CHANNEL, start) is None
    for time, position in places:
        assert await backend.log.seek(CHANNEL, time + timedelta(seconds=30)) == position
    assert await backend.log.seek(CHANNEL, await backend.now() + timedelta(days=900)) == places[-1][1]
    assert await backend.log.seek(CHANNEL, datetime(1999, 1, 1, tzinfo=UTC)) is None


async def test_a_time_is_not_found_in_a_channel_without_events(backend: Backend) -> None:
    assert await backend.log.seek("nowhere", await backend.now()) is None
    await backend.channels.create(CHANNEL)
    assert await backend.log.seek(CHANNEL, await backend.now()) is None


async def test_an_event_at_the_very_time_is_not_before_it(backend: Backend) -> None:
    [first] = await publish(backend, "a")
    await backend.advance(MINUTE)
    await publish(backend, "b")
    [a, b] = await read_all(backend)
    assert a.event.time is not None
    assert b.event.time is not None
    assert await backend.log.seek(CHANNEL, b.event.time) == first.position
    assert await backend.log.seek(CHANNEL, a.event.time) is None


# cuts


def check_cuts(cuts: Sequence[Cut], places: Sequence[str], every: int) -> None:
    """Each cut ends at an event, its slices hold what they say, and none is far from the size asked for."""
    ends = [places.index(cut.position) + 1 for cut in cuts]
    assert ends == sorted(set(ends))
    assert [cut.rows for cut in cuts] == [end - start for start, end in zip([0, *ends], ends, strict=False)]
    assert all(every / 2 <= cut.rows <= 2 * every for cut in cuts[:-1])
    assert 0 < cuts[-1].rows <= 2 * every


@pytest.mark.parametrize("every", [1, 4, 7, 20, 59, 60, 61, 1000])
async def test_slices_are_of_about_the_size_asked_for(backend: Backend, every: int) -> None:
    places = [receipt.position for receipt in await publish(backend, *NAMES)]
    cuts = await backend.log.cuts(CHANNEL, None, 1000, every)
    check_cuts(cuts, places, every)
    assert cuts[-1].position == places[-1], "the last one ends the whole"


@pytest.mark.parametrize("limit", [1, 10, 30, 59, 60, 100])
@pytest.mark.parametrize("every", [5, 16, 100])
async def test_the_limit_ends_the_whole(backend: Backend, limit: int, every: int) -> None:
    places = [receipt.position for receipt in await publish(backend, *NAMES)]
    cuts = await backend.log.cuts(CHANNEL, None, limit, every)
    check_cuts(cuts, places, every)
    assert min(limit, 60) <= sum(cut.rows for cut in cuts) < min(limit, 60) + every


async def test_slices_hold_what_their_pages_give(backend: Backend) -> None:
    for at in range(0, 60, 12):
        await publish(backend, *NAMES[at : at + 12])
        await publish(backend, *(f"r-{at}-{n}" for n in range(at)), channel="refunds")
    after, found = None, list[str]()
    for cut in await backend.log.cuts(CHANNEL, None, 1000, 11):
        slice_ = await ids(backend, after, cut.position, 4)
        assert len(slice_) == cut.rows
        found += slice_
        after = cut.position
    assert found == NAMES


async def test_cuts_go_on_where_the_last_ones_ended(backend: Backend) -> None:
    places = [receipt.position for receipt in await publish(backend, *NAMES)]
    after, total = None, 0
    while cuts := await backend.log.cuts(CHANNEL, after, 14, 5):
        total += sum(cut.rows for cut in cuts)
        after = cuts[-1].position
        assert places.index(after) == total - 1
    assert total == 60


async def test_cuts_end_with_their_bound(backend: Backend) -> None:
    places = [receipt.position for receipt in await publish(backend, *NAMES)]
    cuts = await backend.log.cuts(CHANNEL, places[9], 1000, 8, places[39])
    assert cuts[-1].position == places[39]
    assert sum(cut.rows for cut in cuts) == 30
    [one] = await backend.log.cuts(CHANNEL, places[38], 1000, 8, places[39])
    assert (one.position, one.rows) == (places[39], 1)
    assert await backend.log.cuts(CHANNEL, places[39], 1000, 8, places[39]) == []
    assert await backend.log.cuts(CHANNEL, places[39], 1000, 8, places[9]) == []


async def test_where_nothing_is_left_there_are_no_cuts(backend: Backend) -> None:
    assert await backend.log.cuts("nowhere", None, 10, 10) == []
    await backend.channels.create(CHANNEL)
    assert await backend.log.cuts(CHANNEL, None, 10, 10) == []
    [receipt] = await publish(backend, "a")
    assert await backend.log.cuts(CHANNEL, receipt.position, 10, 10) == []


async def test_cuts_tell_about_how_much_data_there_is(backend: Backend) -> None:
    await backend.log.publish(CHANNEL, [Event(b"x" * 5000, f"e-{n}") for n in range(200)])
    cuts = await backend.log.cuts(CHANNEL, None, 1000, 50)
    assert len(cuts) in range(3, 7)
    for cut in cuts:
        assert cut.rows * 2500 <= cut.bytes <= cut.rows * 10_000


async def test_large_events_count_with_their_data(backend: Backend) -> None:
    await backend.log.publish(CHANNEL, [Event(b"x" * MAX_DATA, f"e-{n}") for n in range(4)])
    cuts = await backend.log.cuts(CHANNEL, None, 1000, 2)
    assert sum(cut.rows for cut in cuts) == 4
    assert 2 * MAX_DATA <= sum(cut.bytes for cut in cuts) <= 8 * MAX_DATA


# behind


async def test_nothing_is_behind_an_empty_log_or_its_end(backend: Backend) -> None:
    assert await backend.log.behind("nowhere", None, 10) == Lag(0, None)
    await backend.channels.create(CHANNEL)
    assert await backend.log.behind(CHANNEL, None, 10) == Lag(0, None)
    [receipt] = await publish(backend, "a")
    assert await backend.log.behind(CHANNEL, receipt.position, 10) == Lag(0, None)


async def test_what_follows_is_counted_and_its_age_told(backend: Backend) -> None:
    receipts, times = [], []
    for name in NAMES[:5]:
        await backend.advance(MINUTE)
        times.append(await backend.now())
        receipts += await publish(backend, name)
        await publish(backend, f"{name}-x", channel="refunds")
    for place, after in enumerate([None, *(receipt.position for receipt in receipts[:-1])]):
        lag = await backend.log.behind(CHANNEL, after, 100)
        assert lag.events == 5 - place
        assert lag.oldest is not None
        assert times[place] <= lag.oldest < times[place] + MINUTE


async def test_the_age_is_of_publishing_and_not_the_events_own(backend: Backend) -> None:
    before = await backend.now()
    await backend.log.publish(CHANNEL, [Event(1, "a", time=TIME)])
    lag = await backend.log.behind(CHANNEL, None, 10)
    assert lag.oldest is not None
    assert before <= lag.oldest <= await backend.now()


async def test_what_follows_is_counted_up_to_the_limit(backend: Backend) -> None:
    receipts = await publish(backend, *NAMES)
    for limit in (1, 59, 60, 61):
        assert (await backend.log.behind(CHANNEL, None, limit)).events == min(limit, 60)
    assert (await backend.log.behind(CHANNEL, receipts[49].position, 4)).events == 4


# many channels at once


async def test_what_waits_on_many_channels_is_told_at_once(backend: Backend) -> None:
    await backend.channels.create("empty")
    before = await backend.now()
    first = await publish(backend, *NAMES)
    second = await publish(backend, "a", "b", channel="refunds")
    after = {"nowhere": None, "empty": None, CHANNEL: first[9].position, "refunds": second[-1].position}
    found = await backend.log.waiting(after, 100)
    assert list(found) == list(after)
    assert found["nowhere"] == found["empty"] == Waiting(None, None, 0, 0, None)
    assert found["refunds"] == Waiting(None, second[-1].position, 0, 0, None)
    trimmed, last, rows, size, oldest = found[CHANNEL]
    assert (trimmed, last, rows) == (None, first[-1].position, 50)
    held = sum(cut.bytes for cut in await backend.log.cuts(CHANNEL, first[9].position, 100, 100))
    assert held / 2 <= size <= held * 2
    assert oldest is not None
    assert before <= oldest <= await backend.now()
    assert (await backend.log.waiting({CHANNEL: None}, 7))[CHANNEL].rows == 7
    assert await backend.log.waiting({}, 7) == {}


async def test_parts_of_many_channels_are_read_as_their_pages_are(backend: Backend) -> None:
    await backend.log.publish(CHANNEL, SHAPES)
    receipts = await publish(backend, *NAMES, channel="refunds")
    parts = [
        Part("refunds", receipts[9].position, receipts[39].position),
        Part("nowhere", None, receipts[0].position),
        Part(CHANNEL, None, await last(backend)),
        Part("refunds", receipts[39].position, receipts[39].position),
        Part("refunds", None, receipts[9].position),
    ]
    pages = await backend.log.read_parts(parts)
    assert len(pages) == len(parts)
    for part, page in zip(parts, pages, strict=True):
        found = [(*row[:6], dict(row[6]), row[7]) for row in zip(*page, strict=True)]
        assert found == await rows(backend, part.after, part.until, channel=part.channel)
    assert [len(page.ids) for page in pages] == [30, 0, len(SHAPES), 0, 10]
    assert await backend.log.read_parts([]) == []


async def test_parts_that_are_larger_than_planned_are_not_all_held(backend: Backend, store: Store) -> None:
    """Many small events and a few large ones in turn, and a small one last, from which a store may guess."""
    names = [f"part-{number}" for number in range(32)]
    sizes = [10] * 4 + [256 << 10] * 8 + [10]
    parts = []
    for name in names:
        receipts = await backend.log.publish(
            name, [Event("x" * size, f"e-{n}") for n, size in enumerate(sizes)]
        )
        parts.append(Part(name, None, receipts[-1].position))
    most, total = 4 << 20, 32 * sum(sizes)
    tracemalloc.start()
    try:
        pages = await backend.log.read_parts(parts, most)
        _, held = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert all(len(page.ids) == len(sizes) for page in pages)
    if store.url.startswith("postgresql:"):  # it has weighed them before
        assert len(pages) == len(parts)
    else:
        assert sum(len(data) for page in pages for data in page.data) <= most
        assert held < total * 4 / 5
    assert await backend.log.read_parts(parts[:1], most) != [], "one that is small enough is read"


# positions


async def test_a_restored_store_goes_on_above_and_reads_on_from_before(
    store: Store, backend: Backend
) -> None:
    old = [receipt.position for receipt in await publish(backend, "a", "b")]
    cut = (await backend.log.cuts(CHANNEL, None, 10, 10))[0].position
    async with restored(store, backend) as reborn:
        new = [receipt.position for receipt in await publish(reborn, "c", "d")]
        assert await reborn.log.extent(CHANNEL) == Extent(None, old[0], new[1])
        assert await ids(reborn, None, new[1], 1) == ["a", "b", "c", "d"]
        assert await ids(reborn, cut, new[1]) == ["c", "d"]
        assert await ids(reborn, None, old[1]) == ["a", "b"]
        assert await ids(reborn, old[0], new[0]) == ["b", "c"]
        assert (await reborn.log.behind(CHANNEL, old[0], 10)).events == 3
        cuts = await reborn.log.cuts(CHANNEL, old[0], 10, 2)
        assert ([each.rows for each in cuts], cuts[-1].position) == ([2, 1], new[1])
        assert await rows(reborn, None, new[1]) == as_read(await read_all(reborn))


async def test_a_position_of_a_later_life_is_beyond_everything(store: Store, backend: Backend) -> None:
    await publish(backend, "a", "b")
    end = await last(backend)
    later = f"{int(end[:4], 16) + 1:04x}{end[4:]}"
    assert await ids(backend, None, later) == ["a", "b"]
    assert await ids(backend, later, later) == []
    assert await backend.log.cuts(CHANNEL, later, 10, 10) == []
    assert await backend.log.behind(CHANNEL, later, 10) == Lag(0, None)
    assert [cut.rows for cut in await backend.log.cuts(CHANNEL, None, 10, 10, later)] == [2]


@pytest.mark.parametrize("position", ["", "nonsense", "0001", "zzzz-0", "0001-00", "\x00", "ÿ"])
async def test_what_is_no_position_is_refused_by_name(backend: Backend, position: str) -> None:
    [receipt] = await publish(backend, "a")
    for call in (
        rows(backend, position, receipt.position),
        rows(backend, None, position),
        backend.log.cuts(CHANNEL, position, 10, 10),
        backend.log.cuts(CHANNEL, None, 10, 10, position),
        backend.log.behind(CHANNEL, position, 10),
        backend.log.waiting({CHANNEL: position}, 10),
        backend.log.read_parts([Part(CHANNEL, position, receipt.position)]),
        backend.log.read_parts([Part(CHANNEL, None, position)]),
    ):
        with pytest.raises(holdfast.InvalidInput) as caught:
            await call
        assert repr(position) in str(caught.value)
