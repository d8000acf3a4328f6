"""The log in bulk against foreign entries, epochs and trims that were not ours."""

from __future__ import annotations

import redis

from holdfast.backends.redis import RedisBackend
from holdfast.backends.redis.codec import to_micros
from holdfast.model.event import Event
from holdfast.model.log import Page
from kit import CHANNEL, publish, read_all


async def pages(backend: RedisBackend, size: int) -> list[Page]:
    last = (await backend.log.extent(CHANNEL)).last
    return [] if last is None else [page async for page in backend.log.pages(CHANNEL, None, last, size)]


async def test_pages_say_what_read_says_whatever_the_entries_are(
    backend: RedisBackend, client: redis.Redis
) -> None:
    now = await backend.now()
    await backend.log.publish(CHANNEL, [Event(n, f"plain-{n}") for n in range(300)])
    await backend.log.publish(CHANNEL, [Event(n, f"keyed-{n}", key=f"k-{n % 3}") for n in range(300)])
    await backend.log.publish(
        CHANNEL, [Event(b"\xff\x00", "all", "shop", "order", "k", now, {"h": "ü"})], priority=3
    )
    await publish(backend, "later", at=now)
    client.xadd(CHANNEL, {"data": "theirs"})
    client.xadd(CHANNEL, {"state": "queued", "size": 3})
    client.xadd(CHANNEL, {b"id": b"\xff", b"source": b"s", b"type": b"t", b"published": b"1", b"data": b"d"})
    client.xadd(CHANNEL, {"id": "i", "source": "s", "type": "t", "published": "soon", "data": "d"})
    client.xadd(CHANNEL, {"source": "s", "id": "i", "type": "t", "published": "5", "data": "d", "key": ""})
    entries = await read_all(backend)
    expected = [
        (e.position, *e.event[1:5], to_micros(e.event.time or now), dict(e.event.headers), e.event.data)
        for e in entries
    ]
    for size in (1, 7, 600, 10_000):
        rows = [
            (place, *texts, time, dict(headers), data)
            for page in await pages(backend, size)
            for place, *texts, time, headers, data in zip(*page, strict=True)
        ]
        assert rows == expected
        assert {len(page.ids) for page in await pages(backend, size)} <= set(range(1, size + 1))


async def test_a_page_of_large_events_is_read_in_small_pieces(
    backend: RedisBackend, client: redis.Redis
) -> None:
    await backend.log.publish(CHANNEL, [Event(b"x" * 500_000, f"e-{n}") for n in range(200)])
    client.config_resetstat()
    sizes = [len(page.ids) for page in await pages(backend, 10_000)]
    assert sum(sizes) == 200
    assert max(sizes[1:]) * 500_000 <= 8_000_000, "a reply stays small whatever the events weigh"


async def test_a_position_of_an_earlier_life_reads_what_was_written_since(
    backend: RedisBackend, client: redis.Redis
) -> None:
    receipts = await publish(backend, "a", "b", "lost")
    client.xdel(CHANNEL, client.xrevrange(CHANNEL, count=1)[0][0])
    client.hset("{holdfast}:store", "run_id", "another server")
    reborn = backend.fork()
    await reborn.open()
    client.xadd(CHANNEL, {"id": "new", "data": "1"})
    extent = await reborn.log.extent(CHANNEL)
    assert (extent.first, extent.last) == (receipts[0].position, (await read_all(reborn))[-1].position)
    assert extent.last is not None
    assert extent.last > receipts[2].position
    read = [page.ids async for page in reborn.log.pages(CHANNEL, receipts[2].position, extent.last, 10)]
    assert read == [["new"]]
    assert [cut.rows for cut in await reborn.log.cuts(CHANNEL, receipts[2].position, 100, 10)] == [1]
    assert (await reborn.log.behind(CHANNEL, receipts[2].position, 100)).events == 1
    assert (await reborn.log.behind(CHANNEL, receipts[0].position, 100)).events == 2
    await reborn.close()


async def test_an_end_that_another_client_deleted_is_no_reason_to_leave_out_the_rest(
    backend: RedisBackend, client: redis.Redis
) -> None:
    receipts = await publish(backend, *(f"e-{n}" for n in range(10)))
    entries = [entry for entry, _ in client.xrange(CHANNEL)]
    client.xdel(CHANNEL, entries[7])
    cuts = await backend.log.cuts(CHANNEL, None, 100, 3, until=receipts[7].position)
    assert [cut.rows for cut in cuts] == [3, 3, 1]
    assert cuts[-1].position == receipts[6].position


async def test_a_log_that_others_emptied_is_known_to_have_lost_everything(
    backend: RedisBackend, client: redis.Redis
) -> None:
    receipts = await publish(backend, "a", "b")
    client.xtrim(CHANNEL, maxlen=0)
    extent = await backend.log.extent(CHANNEL)
    assert (extent.trimmed, extent.first, extent.last) == (receipts[1].position, None, None)
    cursor = await backend.cursors.attach(CHANNEL, "archiver")
    assert cursor.position == receipts[1].position
