"""A store that hears and never answers: a one-way cut, in which nothing fails by itself."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from spread import eventually, id_of, key_of, logged, way_to

import holdfast
from holdfast.backends.postgres import pool
from holdfast_chaos.proxy import Proxy
from kit import CHANNEL, CONSUMER, calm_clock, until

LIVES, SILENT = 0, 1
BULK = 250


@pytest.fixture
async def proxy(urls: list[str], monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Proxy]:
    """The second store's proxy. Nobody here is as patient as in real life."""
    for module in ("session", "log"):
        monkeypatch.setattr(f"holdfast.backends.postgres.{module}.PATIENCE", 2.0)
    monkeypatch.setitem(pool.ALERT, "connect_timeout", 2)
    monkeypatch.setattr("holdfast.bus.publish._PATIENCE", 5.0)
    async with way_to(urls[SILENT]) as started:
        yield started


@pytest.fixture
async def bus(urls: list[str], proxy: Proxy) -> AsyncIterator[holdfast.Bus]:
    async with holdfast.connect([urls[LIVES], proxy.url(urls[SILENT])]) as opened:
        await opened.subscribe(CHANNEL, CONSUMER)
        yield opened
        await proxy.refuse()  # whoever still waits is let go


async def round_of_work(bus: holdfast.Bus) -> None:
    """One event through the store that lives."""
    await bus.publish(CHANNEL, {}, key=key_of(LIVES))
    [job] = await bus.poll(CHANNEL, CONSUMER)
    await bus.finalize(job, success=True)


async def test_a_silent_store_is_noticed_and_then_costs_the_others_nothing(
    bus: holdfast.Bus, proxy: Proxy
) -> None:
    await proxy.cut_replies()

    async def noticed() -> bool:
        await round_of_work(bus)
        return bus.partitions.all[SILENT].health.faulty

    await asyncio.wait_for(until(noticed), 60)
    slowest = 0.0
    async with calm_clock() as now:
        while now() < 5:
            start = now()
            await round_of_work(bus)
            slowest = max(slowest, now() - start)
            await asyncio.sleep(0.02)
    assert slowest < 1.0, "every try to heal the silent store stops the living one"


@pytest.mark.parametrize("count", [1, pytest.param(BULK, marks=pytest.mark.slow)])
async def test_a_publish_to_a_silent_store_ends_with_an_unknown_outcome(
    bus: holdfast.Bus, proxy: Proxy, count: int
) -> None:
    batch = [holdfast.Event({}, id_of(SILENT, number)) for number in range(count)]
    await proxy.cut_replies()
    with pytest.raises(holdfast.Unavailable):
        await asyncio.wait_for(bus.publish_many(CHANNEL, batch), 60)
    await proxy.heal()
    await eventually(lambda: bus.publish_many(CHANNEL, batch))
    assert await logged(bus, SILENT) == [event.id for event in batch]
