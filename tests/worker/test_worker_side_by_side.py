"""Side by side: how many handlers run at once, and how several of one channel get along."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest
from shift import settled, shift

import holdfast
from holdfast.contracts import Backend
from holdfast.model.states import State
from kit import CHANNEL, CONSUMER, publish, subscribe

BACK: dict[str, Any] = {"start": "earliest", "backoff": ["0s"]}


@pytest.mark.parametrize("plain", [False, True])
async def test_never_more_handlers_than_the_concurrency_run_at_once(
    bus: holdfast.Bus, backend: Backend, plain: bool
) -> None:
    app, lock, limit, jobs = holdfast.App(), threading.Lock(), 3, 60
    now, most = 0, 0

    def change(by: int) -> None:
        nonlocal now, most
        with lock:
            now += by
            most = max(most, now)

    async def work(event: holdfast.Event) -> None:
        change(+1)
        await asyncio.sleep(0.005)
        change(-1)

    def block(event: holdfast.Event) -> None:
        change(+1)
        time.sleep(0.005)
        change(-1)

    app.handler(CHANNEL, CONSUMER, concurrency=limit, start="earliest")(block if plain else work)
    await publish(backend, *(f"e-{n}" for n in range(jobs)))
    async with shift(app, bus):
        assert await settled(backend, jobs) == {State.DONE: jobs}
    assert most == limit


async def test_handlers_of_one_channel_are_consumers_and_a_retry_runs_only_what_failed(
    bus: holdfast.Bus, backend: Backend
) -> None:
    app, runs = holdfast.App(), {"steady": 0, "flaky": 0}

    @app.handler(CHANNEL, "steady", **BACK)
    async def steady(event: holdfast.Event) -> None:
        runs["steady"] += 1

    @app.handler(CHANNEL, "flaky", **BACK)
    def flaky(event: holdfast.Event, job: holdfast.Job) -> None:
        runs["flaky"] += 1
        if job.attempt == 1:
            raise holdfast.Transient("once")

    await subscribe(backend, "steady")
    await subscribe(backend, "flaky")
    await publish(backend, "a", "b")
    async with shift(app, bus):
        assert await settled(backend, 2, consumer="steady") == {State.DONE: 2}
        assert await settled(backend, 2, consumer="flaky") == {State.DONE: 2}
    assert runs == {"steady": 2, "flaky": 4}
