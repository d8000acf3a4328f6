"""Typed handlers at work: what fits is handled, what does not is dead at once, in a cluster of its own."""

from __future__ import annotations

import asyncio

import pytest
from pydantic import BaseModel
from shift import settled, shift

import holdfast
from holdfast.contracts import Backend
from holdfast.model.states import State
from kit import CHANNEL, CONSUMER


class Order(BaseModel):
    total: int
    customer: str = "Ann"


@pytest.mark.parametrize("plain", [False, True])
async def test_models_go_in_and_come_out(bus: holdfast.Bus, backend: Backend, plain: bool) -> None:
    app, got = holdfast.App(), list[tuple[Order, int]]()

    async def bill(order: Order, job: holdfast.Job) -> None:
        await asyncio.sleep(0)
        got.append((order, job.attempt))

    def plain_bill(order: Order, job: holdfast.Job) -> None:
        got.append((order, job.attempt))

    app.handler(CHANNEL, CONSUMER, start="earliest")(plain_bill if plain else bill)
    await bus.publish(CHANNEL, Order(total=1))
    await bus.publish_many(
        CHANNEL, [holdfast.Event(Order(total=2, customer="Bob")), holdfast.Event({"total": 3})]
    )
    async with shift(app, bus):
        await settled(backend, 3)
    expected = [(Order(total=1), 1), (Order(total=2, customer="Bob"), 1), (Order(total=3), 1)]
    assert sorted(got, key=lambda each: each[0].total) == expected


@pytest.mark.parametrize("plain", [False, True])
async def test_what_does_not_fit_is_dead_at_once_and_harms_no_other(
    bus: holdfast.Bus, backend: Backend, plain: bool
) -> None:
    app, got = holdfast.App(), list[int]()

    async def bill(order: Order) -> None:
        got.append(order.total)

    def plain_bill(order: Order) -> None:
        got.append(order.total)

    app.handler(CHANNEL, CONSUMER, start="earliest", max_attempts=5)(plain_bill if plain else bill)
    unfit = [{"total": "a"}, {"total": "b"}, {}, [], b"\xff", {"total": None}]
    events = [holdfast.Event(data, f"e-{n}") for n, data in enumerate([*unfit, {"total": 7}])]
    await bus.publish_many(CHANNEL, events)
    async with shift(app, bus):
        assert await settled(backend, 7) == {State.DEAD: 6, State.DONE: 1}
    assert got == [7]
    [job] = await bus.find_jobs(CHANNEL, "e-0")
    assert (job.reason, job.attempts, len(job.errors)) == ("terminal", 1, 1)
    assert job.errors[0]["kind"] == "InvalidData"
    clusters = await backend.deadletters.clusters(CHANNEL, CONSUMER, 10)
    assert sorted(each.count for each in clusters) == [1, 1, 1, 1, 2]
    # A patch that fits is handled.
    assert await backend.deadletters.revive(CHANNEL, CONSUMER, [job.id], b'{"total": 8}') == [True]
    async with shift(app, bus):
        await settled(backend, 7)
    assert got == [7, 8]
