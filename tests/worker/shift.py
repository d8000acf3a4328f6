"""A shift: an app at work while a test looks on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import holdfast
from holdfast.contracts import Backend
from holdfast.model.event import DEFAULT_SOURCE
from holdfast.model.job import JobRecord
from holdfast.model.states import State
from kit import CHANNEL, states, until

PATIENCE = 60.0


@asynccontextmanager
async def shift(app: holdfast.App, bus: holdfast.Bus, **options: Any) -> AsyncIterator[asyncio.Task[None]]:
    """Run the app for the length of the block; then drain it, which must end."""
    stop = asyncio.Event()
    running = asyncio.create_task(app.run(bus, stop=stop, **({"idle": "100ms"} | options)))
    try:
        yield running
        stop.set()
        await asyncio.wait_for(asyncio.shield(running), PATIENCE)
    except AssertionError:
        if running.done():
            running.result()  # an app that has failed says more than the wait for it
        raise
    finally:
        if not running.done():
            running.cancel()
            await asyncio.wait([running], timeout=PATIENCE)


async def settled(backend: Backend, count: int, **of: str) -> dict[State, int]:
    """Wait until so many jobs have ended; answers all jobs by state."""

    async def ended() -> dict[State, int] | None:
        try:
            now = await states(backend, **of)
        except holdfast.NotFound:
            return None  # the app has not subscribed yet
        over = now.get(State.DONE, 0) + now.get(State.DEAD, 0)
        return now if over == sum(now.values()) >= count else None

    return await until(ended, PATIENCE)


async def ended(backend: Backend, event_id: str) -> JobRecord:
    """Wait until the job of an event with one consumer is done or dead, and answer it."""

    async def over() -> JobRecord | None:
        found = await backend.leases.find_jobs(CHANNEL, DEFAULT_SOURCE, event_id)
        return next((each for each in found if each.state in (State.DONE, State.DEAD)), None)

    return await until(over, PATIENCE)


async def holds(condition: Callable[[], bool], patience: float = PATIENCE) -> None:
    """Wait until the condition holds."""

    async def asked() -> bool:
        return condition()

    await until(asked, patience)
