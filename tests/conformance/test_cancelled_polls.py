"""A poll that is cancelled leaves no lease behind: what it leased, nobody knows of."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

from holdfast.bus.client import Bus
from holdfast.contracts import Backend
from holdfast.model.states import State
from kit import CHANNEL, CONSUMER, publish, record, states, subscribe, until


async def all_ready(backend: Backend) -> bool:
    return await states(backend) == {State.READY: 3}


@pytest.mark.parametrize("ordered", [False, True])
async def test_whenever_a_poll_is_cancelled_its_jobs_stay_ready(
    bus: Bus, backend: Backend, ordered: bool
) -> None:
    await subscribe(backend, ordered=ordered)
    await publish(backend, "a", "b", "c")
    for turns in (0, *(2**power for power in range(12))):
        polling = asyncio.create_task(bus.poll(CHANNEL, CONSUMER, limit=10))
        for _ in range(turns):
            await asyncio.sleep(0)
        polling.cancel()
        [result] = await asyncio.gather(polling, return_exceptions=True)
        if isinstance(result, list):  # it was through before it was cancelled
            for job in result:
                await bus.release(job)
        await until(partial(all_ready, backend))
    assert {(await record(backend, name)).abandonments for name in "abc"} == {0}


async def test_a_bus_that_closes_waits_for_what_a_cancelled_poll_leased(backend: Backend) -> None:
    await subscribe(backend)
    await publish(backend, "a", "b", "c")
    for turns in (2**power for power in range(12)):
        async with Bus([backend.fork()]) as bus:
            polling = asyncio.create_task(bus.poll(CHANNEL, CONSUMER, limit=10))
            for _ in range(turns):
                await asyncio.sleep(0)
            polling.cancel()
            [result] = await asyncio.gather(polling, return_exceptions=True)
            if isinstance(result, list):
                break
        assert await states(backend) == {State.READY: 3}, f"cancelled after {turns} turns of the loop"
