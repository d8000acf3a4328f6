"""The log in bulk: its extent, pages by column, cuts that add up, and how far behind a position is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import holdfast
from holdfast.contracts import Backend
from holdfast.model.event import MAX_DATA, Event, LogEntry
from holdfast.model.log import Cut, Extent, Lag
from kit import CHANNEL, MINUTE, bury, claim, complete, publish, read_all, step, subscribe
from stores import Store

NAMES = [f"e-{n}" for n in range(60)]
TIME = datetime(2031, 2, 3, 4, 5, 6, 789, tzinfo=UTC)
SHAPES = [
    Event(b"plain", "plain"),
    Event({"n": 1}, "typed", type="order.placed"),
    Event(1, "named source", source="shop/größe 1"),
    Event(1, "größe %41 = 1", key="k"),
    Event(1, "empty-key", key=""),
    Event(1, "odd-key", key="=a%20b c"),
    Event(1, "timed", time=TIME),
    Event(1, "timed-elsewhere", time=TIME.astimezone(tz=None)),
    Event(1, "headers", headers={"trace": "ü %25", "empty": "", "ce-id": "mine", "Nats-Msg-Id": "x"}),
    Event(b"\x00\xff\r\n\r\n binary \x80", "binary"),
    Event(b"", "nothing"),
    Event(b"all", "all", source="s", type="t", key="k", time=TIME, headers={"a": "b"}),
]


Row = tuple[str, str, str, str, str | None, int, Mapping[str, str], bytes]


def micros(time: datetime | None) -> int:
    assert time is not None
    return (time - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


def as_read(entries: Sequence[LogEntry]) -> list[Row]:
    """What `read` gives, as rows of a page."""
    events = [(entry.position, entry.event) for entry in entries]
    return [(at, e.id, e.source, e.type, e.key, micros(e.time), dict(e.headers), e.data) for at, e in events]


async def rows(
    backend: Backend, after: str | None, until: str, size: int = 1000, channel: str = CHANNEL
) -> list[Row]:
    """What `pages` gives, as rows. Each page is whole and no larger than asked for."""
    found: list[Row] = []
    async for page in backend.pages(channel, after, until, size):
        columns: tuple[Any, ...] = tuple(page)
        assert {len(column) for column in columns} == {len(page.ids)}
        assert 0 < len(page.ids) <= size
        found += zip(*columns, strict=True)
    return [(*row[:6], dict(row[6]), row[7]) for row in found]


async def ids(backend: Backend, after: str | None, until: str, size: int = 1000) -> list[str]:
    return [row[1] for row in await rows(backend, after, until, size)]


async def last(backend: Backend, channel: str = CHANNEL) -> str:
    """The end of a log that is not empty."""
    found = (await backend.extent(channel)).last
    assert found is not None
    return found


@asynccontextmanager
async def restored(store: Store, backend: Backend) -> AsyncIterator[Backend]:
    """The same store in its next life."""
    await store.become_restored()
    reborn = backend.fork()
    await reborn.open()
    try:
        yield reborn
    finally:
        await reborn.close()


# extent and seek


async def test_an_unknown_or_an_empty_channel_has_no_extent(backend: Backend) -> None:
    assert await backend.extent("nowhere") == Extent(None, None, None)
    await backend.create_channel(CHANNEL)
    await subscribe(backend)
    await publish(backend, "elsewhere", channel="refunds")
    assert await backend.extent(CHANNEL) == Extent(None, None, None)


async def test_the_extent_goes_from_the_first_event_to_the_last(backend: Backend) -> None:
    [a] = await publish(backend, "a")
    assert await backend.extent(CHANNEL) == Extent(None, a.position, a.position)
    receipts = await publish(backend, *NAMES)
    assert await backend.extent(CHANNEL) == Extent(None, a.position, receipts[-1].position)
    [again, b] = await publish(backend, "a", "b")
    assert (await backend.extent(CHANNEL)).last == b.position > again.position


async def test_a_time_is_found_between_the_events_around_it(backend: Backend) -> None:
    start, places = await backend.now(), list[tuple[datetime, str]]()
    for name in NAMES[:6]:
        await backend.advance(MINUTE)
        await publish(backend, f"{name}-x", channel="refunds")
        receipts = await publish(backend, name, f"{name}-too")
        places.append((await backend.now(), receipts[1].position))
    assert await backend.seek(CHANNEL, start) is None
    for time, position in places:
        assert await backend.seek(CHANNEL, time + timedelta(seconds=30)) == position
    assert await backend.seek(CHANNEL, await backend.now() + timedelta(days=900)) == places[-1][1]
    assert await backend.seek(CHANNEL, datetime(1999, 1, 1, tzinfo=UTC)) is None


async def test_a_time_is_not_found_in_a_channel_without_events(backend: Backend) -> None:
    assert await backend.seek("nowhere", await backend.now()) is None
    await backend.create_channel(CHANNEL)
    assert await backend.seek(CHANNEL, await backend.now()) is None


async def test_an_event_at_the_very_time_is_not_before_it(backend: Backend) -> None:
    [first] = await publish(backend, "a")
    await backend.advance(MINUTE)
    await publish(backend, "b")
    [a, b] = await read_all(backend)
    assert a.event.time is not None
    assert b.event.time is not None
    assert await backend.seek(CHANNEL, b.event.time) == first.position
    assert await backend.seek(CHANNEL, a.event.time) is None


# pages


@pytest.mark.parametrize("size", [1, 7, 60, 1000])
async def test_pages_are_the_log_in_its_order_whatever_their_size(backend: Backend, size: int) -> None:
    for at in range(0, 60, 20):
        await publish(backend, *NAMES[at : at + 20])
    assert await rows(backend, None, await last(backend), size) == as_read(await read_all(backend))


@pytest.mark.parametrize("event", SHAPES, ids=[event.id for event in SHAPES])
async def test_every_attribute_is_kept(backend: Backend, event: Event) -> None:
    await backend.publish(CHANNEL, [event])
    [entry] = await read_all(backend)
    assert (entry.event.id, entry.event.data, entry.event.key) == (event.id, event.data, event.key)
    assert await rows(backend, None, entry.position) == as_read([entry])


async def test_all_shapes_side_by_side(backend: Backend) -> None:
    for event in SHAPES:
        await backend.publish(CHANNEL, [event])
    await backend.publish(CHANNEL, [event._replace(id=f"{event.id} again") for event in SHAPES])
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
    await backend.publish(CHANNEL, [Event(large, f"l-{n}", key="k", headers={"n": str(n)}) for n in range(3)])
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
    assert all(await backend.complete(await claim(backend, 40)))
    for size in (9, 1000):
        assert await rows(backend, places[3], places[50], size) == first


async def test_an_unknown_channel_has_no_pages(backend: Backend) -> None:
    [receipt] = await publish(backend, "a")
    assert await rows(backend, None, receipt.position, channel="nowhere") == []
    await backend.create_channel("empty")
    assert await rows(backend, None, receipt.position, channel="empty") == []


async def test_a_reader_may_leave_early(backend: Backend) -> None:
    await publish(backend, *NAMES)
    pages = backend.pages(CHANNEL, None, await last(backend), 10)
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
        assert await other.extent(CHANNEL) == await backend.extent(CHANNEL)
        assert await other.cuts(CHANNEL, None, 1000, 20) == await backend.cuts(CHANNEL, None, 1000, 20)
        assert await rows(other, None, end, 7) == await rows(backend, None, end, 7)
    finally:
        await other.close()


async def test_other_channels_and_jobs_in_between_change_nothing(backend: Backend) -> None:
    await backend.create_channel("dead")
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
    assert sum(cut.rows for cut in await backend.cuts(CHANNEL, None, 1000, 9)) == 60
    assert (await backend.behind(CHANNEL, None, 1000)).events == 60
    assert len(await rows(backend, None, await last(backend, "refunds"), channel="refunds")) == 42
    assert len(await rows(backend, None, await last(backend, "dead"), channel="dead")) == 6


async def test_a_reader_that_follows_live_publishes_misses_nothing(backend: Backend) -> None:
    # I14: an end that was told is final, however many publishes overlap.
    seen: list[str] = []

    async def publisher(number: int) -> None:
        for turn in range(30):
            await backend.publish(CHANNEL, [Event(turn, f"{number}-{turn}-{n}") for n in range(turn % 3)])

    async def follow() -> None:
        position: str | None = None
        while len(seen) < 120:
            end = (await backend.extent(CHANNEL)).last
            if end is not None and end != position:
                cuts = await backend.cuts(CHANNEL, position, 1000, 10, end)
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
    cuts = await backend.cuts(CHANNEL, None, 1000, every)
    check_cuts(cuts, places, every)
    assert cuts[-1].position == places[-1], "the last one ends the whole"


@pytest.mark.parametrize("limit", [1, 10, 30, 59, 60, 100])
@pytest.mark.parametrize("every", [5, 16, 100])
async def test_the_limit_ends_the_whole(backend: Backend, limit: int, every: int) -> None:
    places = [receipt.position for receipt in await publish(backend, *NAMES)]
    cuts = await backend.cuts(CHANNEL, None, limit, every)
    check_cuts(cuts, places, every)
    assert min(limit, 60) <= sum(cut.rows for cut in cuts) < min(limit, 60) + every


async def test_slices_hold_what_their_pages_give(backend: Backend) -> None:
    for at in range(0, 60, 12):
        await publish(backend, *NAMES[at : at + 12])
        await publish(backend, *(f"r-{at}-{n}" for n in range(at)), channel="refunds")
    after, found = None, list[str]()
    for cut in await backend.cuts(CHANNEL, None, 1000, 11):
        slice_ = await ids(backend, after, cut.position, 4)
        assert len(slice_) == cut.rows
        found += slice_
        after = cut.position
    assert found == NAMES


async def test_cuts_go_on_where_the_last_ones_ended(backend: Backend) -> None:
    places = [receipt.position for receipt in await publish(backend, *NAMES)]
    after, total = None, 0
    while cuts := await backend.cuts(CHANNEL, after, 14, 5):
        total += sum(cut.rows for cut in cuts)
        after = cuts[-1].position
        assert places.index(after) == total - 1
    assert total == 60


async def test_cuts_end_with_their_bound(backend: Backend) -> None:
    places = [receipt.position for receipt in await publish(backend, *NAMES)]
    cuts = await backend.cuts(CHANNEL, places[9], 1000, 8, places[39])
    assert cuts[-1].position == places[39]
    assert sum(cut.rows for cut in cuts) == 30
    [one] = await backend.cuts(CHANNEL, places[38], 1000, 8, places[39])
    assert (one.position, one.rows) == (places[39], 1)
    assert await backend.cuts(CHANNEL, places[39], 1000, 8, places[39]) == []
    assert await backend.cuts(CHANNEL, places[39], 1000, 8, places[9]) == []


async def test_where_nothing_is_left_there_are_no_cuts(backend: Backend) -> None:
    assert await backend.cuts("nowhere", None, 10, 10) == []
    await backend.create_channel(CHANNEL)
    assert await backend.cuts(CHANNEL, None, 10, 10) == []
    [receipt] = await publish(backend, "a")
    assert await backend.cuts(CHANNEL, receipt.position, 10, 10) == []


async def test_cuts_tell_about_how_much_data_there_is(backend: Backend) -> None:
    await backend.publish(CHANNEL, [Event(b"x" * 5000, f"e-{n}") for n in range(200)])
    cuts = await backend.cuts(CHANNEL, None, 1000, 50)
    assert len(cuts) in range(3, 7)
    for cut in cuts:
        assert cut.rows * 2500 <= cut.bytes <= cut.rows * 10_000


async def test_large_events_count_with_their_data(backend: Backend) -> None:
    await backend.publish(CHANNEL, [Event(b"x" * MAX_DATA, f"e-{n}") for n in range(4)])
    cuts = await backend.cuts(CHANNEL, None, 1000, 2)
    assert sum(cut.rows for cut in cuts) == 4
    assert 2 * MAX_DATA <= sum(cut.bytes for cut in cuts) <= 8 * MAX_DATA


# behind


async def test_nothing_is_behind_an_empty_log_or_its_end(backend: Backend) -> None:
    assert await backend.behind("nowhere", None, 10) == Lag(0, None)
    await backend.create_channel(CHANNEL)
    assert await backend.behind(CHANNEL, None, 10) == Lag(0, None)
    [receipt] = await publish(backend, "a")
    assert await backend.behind(CHANNEL, receipt.position, 10) == Lag(0, None)


async def test_what_follows_is_counted_and_its_age_told(backend: Backend) -> None:
    receipts, times = [], []
    for name in NAMES[:5]:
        await backend.advance(MINUTE)
        times.append(await backend.now())
        receipts += await publish(backend, name)
        await publish(backend, f"{name}-x", channel="refunds")
    for place, after in enumerate([None, *(receipt.position for receipt in receipts[:-1])]):
        lag = await backend.behind(CHANNEL, after, 100)
        assert lag.events == 5 - place
        assert lag.oldest is not None
        assert times[place] <= lag.oldest < times[place] + MINUTE


async def test_the_age_is_of_publishing_and_not_the_events_own(backend: Backend) -> None:
    before = await backend.now()
    await backend.publish(CHANNEL, [Event(1, "a", time=TIME)])
    lag = await backend.behind(CHANNEL, None, 10)
    assert lag.oldest is not None
    assert before <= lag.oldest <= await backend.now()


async def test_what_follows_is_counted_up_to_the_limit(backend: Backend) -> None:
    receipts = await publish(backend, *NAMES)
    for limit in (1, 59, 60, 61):
        assert (await backend.behind(CHANNEL, None, limit)).events == min(limit, 60)
    assert (await backend.behind(CHANNEL, receipts[49].position, 4)).events == 4


# positions


async def test_a_restored_store_goes_on_above_and_reads_on_from_before(
    store: Store, backend: Backend
) -> None:
    old = [receipt.position for receipt in await publish(backend, "a", "b")]
    cut = (await backend.cuts(CHANNEL, None, 10, 10))[0].position
    async with restored(store, backend) as reborn:
        new = [receipt.position for receipt in await publish(reborn, "c", "d")]
        assert await reborn.extent(CHANNEL) == Extent(None, old[0], new[1])
        assert await ids(reborn, None, new[1], 1) == ["a", "b", "c", "d"]
        assert await ids(reborn, cut, new[1]) == ["c", "d"]
        assert await ids(reborn, None, old[1]) == ["a", "b"]
        assert await ids(reborn, old[0], new[0]) == ["b", "c"]
        assert (await reborn.behind(CHANNEL, old[0], 10)).events == 3
        cuts = await reborn.cuts(CHANNEL, old[0], 10, 2)
        assert ([each.rows for each in cuts], cuts[-1].position) == ([2, 1], new[1])
        assert await rows(reborn, None, new[1]) == as_read(await read_all(reborn))


async def test_a_position_of_a_later_life_is_beyond_everything(store: Store, backend: Backend) -> None:
    await publish(backend, "a", "b")
    end = await last(backend)
    later = f"{int(end[:4], 16) + 1:04x}{end[4:]}"
    assert await ids(backend, None, later) == ["a", "b"]
    assert await ids(backend, later, later) == []
    assert await backend.cuts(CHANNEL, later, 10, 10) == []
    assert await backend.behind(CHANNEL, later, 10) == Lag(0, None)
    assert [cut.rows for cut in await backend.cuts(CHANNEL, None, 10, 10, later)] == [2]


@pytest.mark.parametrize("position", ["", "nonsense", "0001", "zzzz-0", "0001-00", "\x00", "ÿ"])
async def test_what_is_no_position_is_refused_by_name(backend: Backend, position: str) -> None:
    [receipt] = await publish(backend, "a")
    for call in (
        rows(backend, position, receipt.position),
        rows(backend, None, position),
        backend.cuts(CHANNEL, position, 10, 10),
        backend.cuts(CHANNEL, None, 10, 10, position),
        backend.behind(CHANNEL, position, 10),
    ):
        with pytest.raises(holdfast.InvalidInput) as caught:
            await call
        assert repr(position) in str(caught.value)
