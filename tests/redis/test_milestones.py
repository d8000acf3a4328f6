"""Milestones: where a batch ends is found without reading it, whoever appended it."""

from __future__ import annotations

from itertools import pairwise

import pytest
import redis

from holdfast.backends.redis import RedisBackend
from holdfast.model.event import Event
from holdfast.model.log import Cut
from kit import CHANNEL, MINUTE, read_all

CHART = f"{{holdfast}}:chart:{CHANNEL}"
EVERY = 2_000


async def fill(backend: RedisBackend, count: int, batch: int = 1_000, size: int = 50) -> None:
    before = (await backend.retention.size(CHANNEL)).events
    for first in range(before, before + count, batch):
        names = range(first, min(first + batch, before + count))
        await backend.log.publish(CHANNEL, [Event(b"x" * size, f"e-{n}") for n in names])


def append(client: redis.Redis, count: int) -> None:
    """A foreign client's entries."""
    with client.pipeline(transaction=False) as pipe:
        for _ in range(count):
            pipe.xadd(CHANNEL, {"data": "x" * 50})
        pipe.execute()


async def check(backend: RedisBackend, cuts: list[Cut], after: str | None = None) -> None:
    """Each slice holds as many events as it says, one after the other."""
    for start, cut in pairwise([Cut(after or "", 0, 0), *cuts]):
        pages = backend.log.pages(CHANNEL, start.position or None, cut.position, 10_000)
        assert sum([len(page.ids) async for page in pages]) == cut.rows


class Meter:
    """What the server did and said since it was made."""

    def __init__(self, client: redis.Redis) -> None:
        self._client = client
        client.config_resetstat()

    @property
    def ranges(self) -> int:
        """XRANGE calls: each reads entries."""
        return int(self._client.info("commandstats").get("cmdstat_xrange", {"calls": 0})["calls"])

    @property
    def sent(self) -> int:
        """Bytes to clients."""
        return int(self._client.info("stats")["total_net_output_bytes"])


async def test_the_cost_of_cutting_does_not_depend_on_how_long_the_log_is(
    backend: RedisBackend, client: redis.Redis
) -> None:
    sent = []
    for _ in range(3):
        await fill(backend, 6_000)
        meter = Meter(client)
        cuts = await backend.log.cuts(CHANNEL, None, 2_500, EVERY)
        sent.append(meter.sent)
        assert meter.ranges == 0, "no entry was read"
        assert 2_500 <= sum(cut.rows for cut in cuts) < 2_500 + EVERY
        await check(backend, cuts)
    assert max(sent) < 2_500, "less than a byte for each event"
    assert max(sent) < 1.5 * min(sent)


async def test_the_next_batch_begins_at_a_milestone(backend: RedisBackend, client: redis.Redis) -> None:
    await fill(backend, 12_000)
    after, rows = None, 0
    while cuts := await backend.log.cuts(CHANNEL, after, 5_000, EVERY):
        await check(backend, cuts, after)
        after, rows = cuts[-1].position, rows + sum(cut.rows for cut in cuts)
        meter = Meter(client)
        await backend.log.cuts(CHANNEL, after, 5_000, EVERY)
        assert meter.ranges == 0
    assert rows == 12_000


async def test_slices_are_about_as_large_as_asked(backend: RedisBackend) -> None:
    await fill(backend, 9_000, batch=130)
    cuts = await backend.log.cuts(CHANNEL, None, 1_000_000, EVERY)
    assert all(EVERY <= cut.rows < 1.5 * EVERY for cut in cuts[:-1])
    assert sum(cut.rows for cut in cuts) == 9_000
    assert [round(cut.bytes / cut.rows) for cut in cuts] == [50] * len(cuts)
    await check(backend, cuts)


async def test_entries_of_others_in_between_are_counted(backend: RedisBackend, client: redis.Redis) -> None:
    for _ in range(6):
        await fill(backend, 700, batch=90)
        append(client, 200)
    meter = Meter(client)
    cuts = await backend.log.cuts(CHANNEL, None, 100_000, EVERY)
    assert meter.ranges == 0, "the next publish has counted them"
    assert sum(cut.rows for cut in cuts) == 5_400
    await check(backend, cuts)


async def test_a_log_that_only_others_append_to_is_walked_once(
    backend: RedisBackend, client: redis.Redis
) -> None:
    append(client, 6_000)
    meter = Meter(client)
    first = await backend.log.cuts(CHANNEL, None, 5_000, EVERY)
    walked = meter.ranges
    assert walked >= 5
    assert await backend.log.cuts(CHANNEL, None, 5_000, EVERY) == first
    assert meter.ranges == walked, "what was found was kept"
    await check(backend, first)


async def test_a_position_in_the_middle_is_as_good(backend: RedisBackend, client: redis.Redis) -> None:
    await fill(backend, 8_000)
    entries = await read_all(backend)
    after, until = entries[1234].position, entries[7003].position
    meter = Meter(client)
    cuts = await backend.log.cuts(CHANNEL, after, 100_000, EVERY, until)
    assert meter.ranges <= 2, "to the next milestone, and to the end"
    assert (sum(cut.rows for cut in cuts), cuts[-1].position) == (7003 - 1234, until)
    await check(backend, cuts, after)


@pytest.mark.parametrize("maxlen", [100, 4_321])
async def test_what_others_trimmed_makes_no_slice_wrong_for_long(
    backend: RedisBackend, client: redis.Redis, maxlen: int
) -> None:
    await fill(backend, 6_000)
    gone = (await read_all(backend))[-maxlen - 1].position
    client.xtrim(CHANNEL, maxlen=maxlen, approximate=False)
    trimmed = (await backend.log.extent(CHANNEL)).trimmed
    assert trimmed is not None, "a milestone tells that something is gone"
    assert trimmed <= gone
    await fill(backend, 6_000)
    cuts = await backend.log.cuts(CHANNEL, trimmed, 100_000, EVERY)
    assert cuts[-1].position == (await backend.log.extent(CHANNEL)).last, "the ends are right in any case"
    assert len(cuts) >= maxlen // (2 * EVERY)


async def test_a_trim_takes_its_milestones_with_it(backend: RedisBackend, client: redis.Redis) -> None:
    await fill(backend, 10_000)
    lock = await backend.locks.acquire("sweeper", "me", MINUTE)
    assert lock is not None
    before = client.zcard(CHART)
    await backend.advance(MINUTE)
    assert (await backend.retention.trim(CHANNEL, await backend.now(), 6_100, lock)).removed == 6_100
    assert client.zcard(CHART) < before / 2
    after = (await backend.log.extent(CHANNEL)).trimmed
    cuts = await backend.log.cuts(CHANNEL, after, 100_000, EVERY)
    assert sum(cut.rows for cut in cuts) == 3_900
    await check(backend, cuts, after)
    await backend.retention.trim(CHANNEL, await backend.now(), 10_000, lock)
    assert client.zcard(CHART) == 0
    assert await backend.log.cuts(CHANNEL, None, 100, 10) == []


async def test_how_far_behind_is_known_without_reading(backend: RedisBackend, client: redis.Redis) -> None:
    await fill(backend, 8_000)
    meter = Meter(client)
    assert (await backend.log.behind(CHANNEL, None, 1_000_000)).events == 8_000
    assert meter.ranges == 1, "the first event, for its age"
    assert (await backend.log.behind(CHANNEL, None, 777)).events == 777
