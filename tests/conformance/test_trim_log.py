"""The log after a trim: what is gone is told, and is not forgotten."""

from __future__ import annotations

import pytest
from sweeps import Sweep, kept, locked, page_ids, positions

import holdfast
from holdfast.contracts import Backend
from holdfast.model.errors import DataLost
from holdfast.model.event import Event
from holdfast.model.log import Part
from holdfast.model.upkeep import Hold
from kit import (
    CHANNEL,
    claim,
    ids,
    publish,
    step,
    subscribe,
)


@pytest.fixture
async def trim(backend: Backend) -> Sweep:
    return Sweep(backend, await locked(backend))


async def test_a_trimmed_id_is_still_a_duplicate(backend: Backend, trim: Sweep) -> None:
    [first] = await publish(backend, "a")
    assert (await trim()).removed == 1
    [again] = await publish(backend, "a")
    assert (again.duplicate, again.position) == (True, first.position)
    with pytest.raises(holdfast.IdConflict):
        await backend.log.publish(CHANNEL, [Event({"id": "other"}, "a")])
    assert await kept(backend) == []


async def test_the_extent_tells_what_is_gone(backend: Backend, trim: Sweep) -> None:
    a, b, c = positions(await publish(backend, "a", "b", "c"))
    assert (await backend.log.extent(CHANNEL)).trimmed is None
    await trim(limit=1)
    extent = await backend.log.extent(CHANNEL)
    assert (extent.trimmed, extent.first, extent.last) == (a, b, c)
    await trim()
    extent = await backend.log.extent(CHANNEL)
    assert (extent.trimmed, extent.first, extent.last) == (c, None, None)
    [d] = positions(await publish(backend, "d"))
    assert d > c, "positions go on where they were"
    extent = await backend.log.extent(CHANNEL)
    assert (extent.trimmed, extent.first, extent.last) == (c, d, d)


async def test_whoever_asks_for_what_was_trimmed_is_told(backend: Backend, trim: Sweep) -> None:
    a, b, c, d = positions(await publish(backend, "a", "b", "c", "d"))
    await trim(limit=2)
    assert await page_ids(backend, b, d) == ["c", "d"], "nothing after b is missing"
    assert await page_ids(backend, c, d) == ["d"]
    for after in (None, a):
        with pytest.raises(DataLost):
            await page_ids(backend, after, d)
    await trim()
    with pytest.raises(DataLost):
        await page_ids(backend, b, d)
    assert await page_ids(backend, d, d) == []


async def test_a_trim_between_two_pages_is_told(backend: Backend, trim: Sweep) -> None:
    names = [f"e-{n}" for n in range(3000)]
    receipts = await publish(backend, *names)
    seen: list[str] = []

    async def read() -> None:
        async for page in backend.log.pages(CHANNEL, None, receipts[-1].position, 10):
            seen.extend(page.ids)
            await trim(limit=2900)

    with pytest.raises(DataLost):
        await read()
    assert seen == names[: len(seen)] != [], "what it did read has no hole"


async def test_a_part_of_which_something_was_trimmed_is_lost(backend: Backend, trim: Sweep) -> None:
    _, b, _, d = positions(await publish(backend, "a", "b", "c", "d"))
    [kept] = positions(await publish(backend, "k", channel="refunds"))
    await trim(limit=2)
    parts = [Part("refunds", None, kept), Part(CHANNEL, None, d)]
    with pytest.raises(DataLost):
        await backend.log.read_parts(parts)
    found = (await backend.log.waiting({CHANNEL: None}, 10))[CHANNEL]
    assert (found.trimmed, found.last, found.rows) == (b, d, 2)
    pages = await backend.log.read_parts([parts[0], parts[1]._replace(after=found.trimmed)])
    assert [page.ids for page in pages] == [["k"], ["c", "d"]]


async def test_a_new_stream_consumer_begins_at_what_is_there(backend: Backend, trim: Sweep) -> None:
    a, b = positions(await publish(backend, "a", "b"))
    await trim(limit=1)
    cursor = await backend.cursors.attach(CHANNEL, "archiver")
    assert cursor.position == a
    assert await page_ids(backend, cursor.position, b) == ["b"]
    assert (await trim()).hold == Hold("archiver", a)


async def test_a_new_worker_gets_what_is_left(backend: Backend, trim: Sweep) -> None:
    await publish(backend, "a", "b", "c")
    await trim(limit=2)
    await subscribe(backend, start="earliest")
    while (await step(backend)).backfilled:
        pass
    assert ids(await claim(backend)) == ["c"]


async def test_counts_follow(backend: Backend, trim: Sweep) -> None:
    await publish(backend, *(f"e-{n}" for n in range(20)))
    await trim(limit=15)
    assert (await backend.channels.stats(CHANNEL)).events == 5
    assert (await backend.retention.size(CHANNEL)).events == 5
    assert (await backend.log.behind(CHANNEL, None, 100)).events == 5
