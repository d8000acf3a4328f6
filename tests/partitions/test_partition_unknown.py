"""A publish whose outcome is unknown is asked again, with the same id, at the same store: one event."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest
from spread import eventually, id_of, key_of, logged, way_to

import holdfast
from holdfast_chaos.proxy import Proxy
from kit import CHANNEL, CONSUMER

BULK = 250


@pytest.fixture
async def proxies(urls: list[str]) -> AsyncIterator[list[Proxy]]:
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(way_to(url)) for url in urls]


@pytest.fixture
async def bus(urls: list[str], proxies: list[Proxy]) -> AsyncIterator[holdfast.Bus]:
    """A bus that reaches its stores by way of the proxies."""
    ways = [proxy.url(url) for proxy, url in zip(proxies, urls, strict=True)]
    async with holdfast.connect(ways) as opened:
        await opened.subscribe(CHANNEL, CONSUMER)
        yield opened


async def events(bus: holdfast.Bus) -> list[list[str]]:
    return [await logged(bus, index) for index in (0, 1)]


@pytest.mark.parametrize("by", ["id", "key", "neither"])
async def test_an_event_whose_receipt_was_lost_stands_once(
    bus: holdfast.Bus, proxies: list[Proxy], by: str
) -> None:
    name, key = {"id": (id_of(1), None), "key": (None, key_of(1)), "neither": (None, None)}[by]
    bus.partitions.all[0].health.load = 1000  # whoever may go anywhere goes to the second store
    await proxies[1].drop_reply(containing=b"the-payload")
    receipt = await bus.publish(CHANNEL, {"is": "the-payload"}, id=name, key=key)
    assert proxies[1].dropped == 1
    assert await events(bus) == [[], [receipt.id]]
    [entry] = await bus.read(CHANNEL, partition=1)
    assert entry.position == receipt.position
    [job] = await bus.poll(CHANNEL, CONSUMER, limit=10)
    assert job.event.id == receipt.id


@pytest.mark.parametrize("named", [True, False])
async def test_a_bulk_whose_commit_was_not_answered_stands_once(
    bus: holdfast.Bus, proxies: list[Proxy], named: bool
) -> None:
    bus.partitions.all[0].health.load = 1000
    batch = [
        holdfast.Event({"n": n}, id_of(1, n) if named else "") for n in range(BULK if not named else 200)
    ]
    await proxies[1].drop_reply(containing=b"COMMIT")
    receipts = await bus.publish_many(CHANNEL, batch)
    assert proxies[1].dropped == 1
    assert await events(bus) == [[], [receipt.id for receipt in receipts]]
    assert len({receipt.id for receipt in receipts}) == len(batch)
    assert len(await bus.poll(CHANNEL, CONSUMER, limit=1000)) == len(batch)


async def test_an_unknown_outcome_that_stays_unknown_is_said_and_a_later_repeat_finds_it(
    bus: holdfast.Bus, proxies: list[Proxy]
) -> None:
    """The reply is lost, and so are those to every repeat: only the caller can ask again later."""
    await bus.publish(CHANNEL, {}, id=id_of(1, 1))
    await proxies[1].drop_reply(100, containing=b"the-payload")
    with pytest.raises(holdfast.Unavailable):
        await bus.publish(CHANNEL, {"is": "the-payload"}, id=id_of(1))
    await proxies[1].heal()
    receipt = await eventually(lambda: bus.publish(CHANNEL, {"is": "the-payload"}, id=id_of(1)))
    assert receipt.duplicate
    assert await events(bus) == [[], [id_of(1, 1), id_of(1)]]


async def test_a_finalize_whose_answer_was_lost_was_applied_once(
    bus: holdfast.Bus, proxies: list[Proxy]
) -> None:
    await bus.publish(CHANNEL, {}, id=id_of(1))
    [job] = await bus.poll(CHANNEL, CONSUMER)
    await proxies[1].drop_reply(containing=b"holdfast.complete")  # the statement that completes
    with pytest.raises(holdfast.Unavailable):
        await bus.finalize(job, success=True)
    assert proxies[1].dropped == 1
    with pytest.raises(holdfast.LeaseLost):
        await bus.finalize(job, success=True)
    [found] = await bus.find_jobs(CHANNEL, id_of(1))
    assert (found.state, found.attempts) == ("done", 1)
