"""The clock: an application whose time of day is a day off loses nothing and gets nothing early."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, date, datetime, timedelta

import pytest

import holdfast
from holdfast.bus import publish as publishing
from holdfast.contracts import Backend
from holdfast.model import event
from holdfast.model.states import State
from holdfast.wiring import backend as connect_backend
from holdfast_chaos.clock import shift
from kit import (
    CHANNEL,
    LEASE,
    abandon,
    claim,
    claim_one,
    complete,
    fail,
    ids,
    publish,
    states,
    step,
    subscribe,
    until,
)

DAY = timedelta(days=1)
SECOND = timedelta(seconds=1)


@pytest.fixture(params=[DAY, -DAY], ids=["ahead", "behind"])
def off(request: pytest.FixtureRequest) -> Iterator[timedelta]:
    """How far this application's clock is off."""
    shift(request.param)
    yield request.param
    shift(timedelta(0))


@pytest.fixture
async def store(database: str, off: timedelta) -> AsyncIterator[Backend]:
    opened = connect_backend(database)
    await opened.open()
    yield opened
    await opened.close()


def test_our_modules_see_another_time_of_day_and_nobody_else_does(off: timedelta) -> None:
    began = time.monotonic()
    seen = [
        publishing.datetime.now(UTC),
        datetime.fromtimestamp(event.time.time(), UTC),
        datetime.fromtimestamp(event.time.time_ns() / 1e9, UTC),
    ]
    for each in seen:
        assert abs(each - off - datetime.now(UTC)) < 10 * SECOND
    assert event.time.monotonic() - began < 10
    assert abs(time.time() - datetime.now(UTC).timestamp()) < 10


def test_what_it_makes_is_a_plain_datetime(off: timedelta) -> None:
    false = publishing.datetime
    assert false is not datetime
    when = datetime(2026, 3, 1, 12, tzinfo=UTC)
    made = [
        false(2026, 3, 1, 12, tzinfo=UTC),
        false.fromisoformat("2026-03-01T12:00:00+00:00"),
        false.fromtimestamp(when.timestamp(), UTC),
        false.combine(date(2026, 3, 1), when.timetz()),
    ]
    assert made == [when] * 4
    assert {type(each) for each in [*made, false.now(UTC)]} == {datetime}
    assert isinstance(when, false)
    assert not isinstance(date(2026, 3, 1), false)


def test_it_ends() -> None:
    shift(DAY)
    shift(timedelta(0))
    assert publishing.datetime is datetime
    assert event.time is time


async def test_leases_run_on_the_stores_time(store: Backend) -> None:
    await subscribe(store)
    await publish(store, "a")
    job = await claim_one(store)
    assert (await step(store)).abandoned == 0
    assert await claim(store) == []
    await store.advance(LEASE - 10 * SECOND)
    assert (await step(store)).abandoned == 0
    assert (await abandon(store, 10 * SECOND)).abandoned == 1
    again = await claim_one(store)
    assert again.token > job.token
    assert not await complete(store, job)
    assert await complete(store, again)


async def test_nothing_is_handed_out_early_or_kept_back(store: Backend) -> None:
    await subscribe(store)
    await publish(store, "scheduled", at=await store.now() + timedelta(hours=1))
    await publish(store, "retried")
    await fail(store, await claim_one(store), timedelta(hours=2))
    await step(store)
    assert await claim(store) == []
    await store.advance(timedelta(hours=1))
    await step(store)
    assert ids(await claim(store)) == ["scheduled"]
    await store.advance(timedelta(hours=1))
    await step(store)
    assert "retried" in ids(await claim(store))


async def test_a_publisher_and_a_worker_lose_nothing(store: Backend, database: str) -> None:
    names = [f"event-{number}" for number in range(50)]
    handled, app, stop = list[str](), holdfast.App(), asyncio.Event()

    @app.handler(CHANNEL, "billing", backoff=["10ms"])
    async def handle(event: holdfast.Event) -> None:
        handled.append(event.id)
        if handled.count(event.id) == 1 and event.id.endswith("7"):
            raise holdfast.Transient("once more")

    async with holdfast.connect(database) as bus:
        await bus.subscribe(CHANNEL, "billing")
        running = asyncio.create_task(app.run(bus, stop=stop, idle="50ms"))
        for name in names:
            await bus.publish(CHANNEL, {}, id=name)

        async def done() -> bool:
            return (await states(store)).get(State.DONE, 0) == len(names)

        await until(done)
        stop.set()
        await running
    assert sorted(set(handled)) == sorted(names)
    assert len(handled) == len(names) + 5
