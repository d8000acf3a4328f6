"""What planning asks of a store, and who gets a place in a batch that is too small for all."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from holdfast import Event
from holdfast.contracts import Backend
from holdfast.pipeline.options import Options
from holdfast.pipeline.planner import Planner
from holdfast.wiring import backend as connect_backend
from kit import Hooked

IDLE = 300


class Counted(Hooked):
    """A backend that counts which of its verbs are used."""

    def __init__(self, backend: Backend) -> None:
        self.calls: Counter[str] = Counter()
        super().__init__(backend, self._count)

    def _count(self, verb: str, call: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        self.calls[verb] += 1
        return call(*arguments, **options)


@pytest.fixture
async def backend(empty_redis: str) -> AsyncIterator[Backend]:
    opened = connect_backend(empty_redis)
    await opened.open()
    yield opened
    await opened.close()


async def publish(backend: Backend, channel: str, count: int) -> None:
    await backend.log.publish(channel, [Event({}, f"{channel}-{number}") for number in range(count)])


async def test_many_small_channels_cost_one_question_and_news_none_more(backend: Backend) -> None:
    for number in range(IDLE):
        await backend.channels.create(f"shop.{number}")
    counted = Counted(backend)
    planner = Planner(Options.of({"url": backend.url, "channel": "shop.*"}), [counted])  # type: ignore[list-item]
    start = await planner.beginning()
    counted.calls.clear()
    assert await planner.latest(start, 1000) == start
    assert counted.calls == {"channels.names": 1, "log.waiting": 1}
    await publish(backend, "shop.7", 3)
    counted.calls.clear()
    end = await planner.latest(start, 1000)
    assert counted.calls == {"channels.names": 1, "log.waiting": 1}
    counted.calls.clear()
    parts, _ = await planner.plan(start, end)
    assert [part.rows for part in parts] == [3]
    assert counted.calls == {}, "the look has told all that there is to know"


async def test_new_channels_are_found_and_what_drivers_announce_is_no_work(backend: Backend) -> None:
    planner = Planner(Options.of({"url": backend.url, "channel": ">"}), [backend])
    start = await planner.beginning()
    assert start == {}
    for channel in ("orders", "gbe.events.audit.change", "gbe.events.system.archive"):
        await publish(backend, channel, 1)
    found = await planner.latest(start, 1000)
    assert {spot.channel for spot in found} == {"orders", "gbe.events.audit.change"}
    named = Planner(Options.of({"url": backend.url, "channel": "gbe.events.system.*"}), [backend])
    assert {spot.channel for spot in await named.beginning()} == {"gbe.events.system.archive"}


async def test_everybody_has_a_turn_where_a_batch_holds_fewer_rows_than_channels(backend: Backend) -> None:
    for name in ("a", "b", "c"):
        await publish(backend, f"shop.{name}", 5)
    planner = Planner(Options.of({"url": backend.url, "channel": "shop.*"}), [backend])
    offsets = await planner.beginning()
    served = set()
    for _ in range(3):
        before, offsets = offsets, await planner.latest(offsets, 1)
        [moved] = [spot.channel for spot in offsets if offsets[spot] != before[spot]]
        served.add(moved)
    assert served == {"shop.a", "shop.b", "shop.c"}


async def test_small_channels_share_a_task_and_large_ones_are_cut(backend: Backend) -> None:
    await publish(backend, "shop.large", 95)
    for name in ("a", "b", "c"):
        await publish(backend, f"shop.{name}", 2)
    options = Options.of({"url": backend.url, "channel": "shop.*", "rowsPerPartition": "30"})
    planner = Planner(options, [backend])
    parts, rows = await planner.plan(await planner.beginning(), await planner.ending("latest"))
    assert rows == 30
    assert [(part.spot.channel, part.rows) for part in parts] == [
        ("shop.a", 2),
        ("shop.b", 2),
        ("shop.c", 2),
        ("shop.large", 30),
        ("shop.large", 30),
        ("shop.large", 30),
        ("shop.large", 5),
    ]
    assert [part.after for part in parts[4:]] == [part.until for part in parts[3:-1]]


async def test_a_channel_enters_with_one_batch_and_is_read_with_the_next(backend: Backend) -> None:
    await publish(backend, "shop.a", 1)
    planner = Planner(Options.of({"url": backend.url, "channel": "shop.*"}), [backend])
    start = await planner.beginning()
    await publish(backend, "shop.b", 2)
    middle = await planner.latest(start, 1000)
    end = await planner.latest(middle, 1000)
    (first, _), (second, _) = await planner.plan(start, middle), await planner.plan(middle, end)
    assert [(part.spot.channel, part.rows) for part in first] == [("shop.a", 1)]
    assert [(part.spot.channel, part.rows) for part in second] == [("shop.b", 2)]
    assert await planner.latest(end, 1000) == end
