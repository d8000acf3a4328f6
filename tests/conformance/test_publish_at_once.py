"""Single events that are published at the same time share appends; each publisher has its own result."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from holdfast.bus.client import Bus
from holdfast.contracts import Backend
from holdfast.model.errors import IdConflict, Overloaded
from holdfast.model.event import Event, Receipt
from kit import CHANNEL, CONSUMER, subscribe, until

MANY = 60


@pytest.fixture
def appends(bus: Bus, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many events each append had."""
    log = bus.partitions.all[0].backend.log
    publish, sizes = log.publish, list[int]()

    async def counted(channel: str, events: Sequence[Event], **options: Any) -> list[Receipt]:
        sizes.append(len(events))
        return await publish(channel, events, **options)

    monkeypatch.setattr(log, "publish", counted)
    return sizes


async def names(backend: Backend) -> list[str]:
    return sorted(entry.event.id for entry in await backend.log.read(CHANNEL, None, 1000))


async def test_they_share_appends(bus: Bus, backend: Backend, appends: list[int]) -> None:
    receipts = await asyncio.gather(*(bus.publish(CHANNEL, {"n": n}, id=f"e-{n:02}") for n in range(MANY)))
    assert [receipt.id for receipt in receipts] == [f"e-{n:02}" for n in range(MANY)]
    entries = {entry.event.id: entry for entry in await backend.log.read(CHANNEL, None, 1000)}
    assert {receipt.id: receipt.position for receipt in receipts} == {
        name: entry.position for name, entry in entries.items()
    }
    assert all(entry.event.json() == {"n": int(name[2:])} for name, entry in entries.items())
    assert sum(appends) == MANY
    assert len(appends) <= 5


async def test_those_of_other_priorities_keep_theirs(bus: Bus, backend: Backend) -> None:
    await subscribe(backend)
    await asyncio.gather(*(bus.publish(CHANNEL, {}, id=f"{n % 3}-{n}", priority=n % 3) for n in range(30)))
    claimed = [job.event.id[0] for job in await backend.leases.claim(CHANNEL, CONSUMER, 100, "w")]
    assert claimed == ["2"] * 10 + ["1"] * 10 + ["0"] * 10


async def test_one_that_is_refused_harms_no_other(bus: Bus, backend: Backend) -> None:
    await bus.publish(CHANNEL, {"n": 1}, id="taken")
    published = [bus.publish(CHANNEL, {"n": 2}, id=f"e-{n:02}") for n in range(MANY)]
    published.insert(MANY // 2, bus.publish(CHANNEL, {"n": 2}, id="taken"))
    results = await asyncio.gather(*published, return_exceptions=True)
    kinds = Counter(type(result) for result in results)
    assert kinds == {Receipt: MANY, IdConflict: 1}
    assert isinstance(results[MANY // 2], IdConflict)
    assert await names(backend) == [*(f"e-{n:02}" for n in range(MANY)), "taken"]


async def test_of_one_id_all_but_one_are_duplicates(bus: Bus, backend: Backend) -> None:
    receipts = await asyncio.gather(*(bus.publish(CHANNEL, {}, id=f"e-{n % 2}") for n in range(MANY)))
    assert Counter(receipt.duplicate for receipt in receipts) == {False: 2, True: MANY - 2}
    assert len({receipt.position for receipt in receipts}) == 2
    assert await names(backend) == ["e-0", "e-1"]


async def test_a_full_consumer_refuses_them(bus: Bus, backend: Backend) -> None:
    await subscribe(backend, max_depth=7)
    results = await asyncio.gather(*(bus.publish(CHANNEL, {}) for _ in range(300)), return_exceptions=True)
    kinds = Counter(type(result) for result in results)
    assert kinds.keys() == {Receipt, Overloaded}
    assert 7 <= kinds[Receipt] == len(await names(backend)) <= 7 + 100


async def test_one_that_is_cancelled_harms_no_other(bus: Bus, backend: Backend) -> None:
    for turns in range(12):
        start = turns * MANY
        published = [
            asyncio.create_task(bus.publish(CHANNEL, {}, id=f"e-{n:03}")) for n in range(start, start + MANY)
        ]
        for _ in range(turns):
            await asyncio.sleep(0)
        for cancelled in published[:: 1 + turns % 3]:
            cancelled.cancel()
        results = await asyncio.gather(*published, return_exceptions=True)
        kept = {result.id for result in results if isinstance(result, Receipt)}
        assert kept <= set(await names(backend))
        assert len(kept) >= MANY - len(published[:: 1 + turns % 3])
    await asyncio.wait_for(bus.publish(CHANNEL, {}, id="last"), 30)


async def test_a_bus_that_closes_answers_all(backend: Backend) -> None:
    async with Bus([backend.fork()]) as bus:
        published = [asyncio.create_task(bus.publish(CHANNEL, {}, id=f"e-{n:02}")) for n in range(MANY)]

        async def one_is_there() -> bool:
            return bool(await names(backend))

        await until(one_is_there)
    results = await asyncio.wait_for(asyncio.gather(*published, return_exceptions=True), 30)
    assert {result.id for result in results if isinstance(result, Receipt)} <= set(await names(backend))
