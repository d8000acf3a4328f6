"""Shutdown: work that was not finished is released, not failed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

import holdfast
from holdfast.bus.client import Bus
from holdfast.contracts import Backend
from holdfast.model.states import State
from kit import CHANNEL, CONSUMER, publish, record, until


def blocking_app() -> tuple[holdfast.App, asyncio.Event]:
    """An app whose handler never ends by itself, and an event that tells that it has begun."""
    app, begun = holdfast.App(), asyncio.Event()

    @app.handler(CHANNEL, CONSUMER, max_attempts=1, concurrency=1, start="earliest")
    async def forever(event: holdfast.Event) -> None:
        begun.set()
        await asyncio.Event().wait()

    return app, begun


async def drained(app: holdfast.App, bus: Bus, begun: asyncio.Event) -> None:
    stop = asyncio.Event()
    running = asyncio.create_task(app.run(bus, stop=stop, idle="100ms", grace="0s"))
    await begun.wait()
    stop.set()
    await running


async def aborted(app: holdfast.App, bus: Bus, begun: asyncio.Event) -> None:
    running = asyncio.create_task(app.run(bus, idle="100ms"))
    await begun.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


@pytest.mark.parametrize("end", [drained, aborted])
async def test_a_shutdown_releases_and_spends_no_budget(
    bus: Bus, backend: Backend, end: Callable[[holdfast.App, Bus, asyncio.Event], Awaitable[None]]
) -> None:
    # CORRECTIONS 001.7: catching everything also catches cancellation.
    app, begun = blocking_app()
    await publish(backend, "running", "prefetched")
    async with asyncio.timeout(30):
        await end(app, bus, begun)
    for name in ("running", "prefetched"):
        kept = await record(backend, name)
        assert (kept.state, kept.attempts, kept.abandonments) == (State.READY, 0, 0), name
        assert kept.errors == []
    [job, _] = await bus.poll(CHANNEL, CONSUMER, limit=10)
    assert (job.event.id, job.attempt) == ("running", 1)


async def test_a_handler_that_fails_by_itself_is_no_shutdown(bus: Bus, backend: Backend) -> None:
    """The counterpart: the same app with an error is retried by its policy."""
    app, stop = holdfast.App(), asyncio.Event()

    @app.handler(CHANNEL, CONSUMER, max_attempts=1, start="earliest")
    async def fails(event: holdfast.Event) -> None:
        raise RuntimeError("no")

    await publish(backend, "a")
    running = asyncio.create_task(app.run(bus, stop=stop, idle="100ms"))

    async def dead() -> bool:
        found = await bus.find_jobs(CHANNEL, "a")
        return bool(found) and found[0].state is State.DEAD

    await until(dead)
    stop.set()
    await running
    assert (await record(backend, "a")).reason == "max_attempts"
