"""A process that polls for every consumer, without an app: it completes, fails, snoozes and releases.

Specification: url, history, consumers (channels and names), drained (a file that ends it).
"""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from pathlib import Path
from typing import Any

from holdfast.bus.client import Bus
from holdfast.chaos.parties.heartbeat import beating
from holdfast.chaos.parties.opening import opened
from holdfast.model.errors import LeaseLost
from holdfast.model.job import Job

_IDLE, _LIMITS = 0.4, (1, 4, 20)
_SINGLY = 0.3
_ENDS = ("complete",) * 6 + ("fail", "terminal", "release", "snooze", "extend", "slow")


async def main(spec: dict[str, Any]) -> None:
    store, notes = opened(spec)
    async with Bus([store]) as bus, beating(notes):
        await asyncio.gather(*(_poll(bus, Path(spec["drained"]), *each) for each in spec["consumers"]))


async def _poll(bus: Bus, end: Path, channel: str, consumer: str) -> None:
    while not end.exists():
        jobs = await bus.poll(channel, consumer, limit=random.choice(_LIMITS))
        if len(jobs) > 1 and random.random() > _SINGLY:
            with suppress(LeaseLost):  # an operator took some of them away
                await bus.finalize_many(jobs, success=True)
        else:
            for job in jobs:
                with suppress(LeaseLost):
                    await _finish(bus, job)
        await asyncio.sleep(0 if jobs else _IDLE)


async def _finish(bus: Bus, job: Job) -> None:
    match random.choice(_ENDS):
        case "fail":
            await bus.finalize(job, success=False, error="not this time")
        case "terminal":
            await bus.finalize(job, success=False, error="no use", terminal=True)
        case "release":
            await bus.release(job)
        case "snooze":
            await bus.snooze(job, "50ms")
        case "extend":
            await bus.extend(job, "1m")
            await bus.finalize(job, success=True)
        case "slow":
            await asyncio.sleep(random.uniform(0, 0.2))
            await bus.finalize(job, success=True)
        case _:
            await bus.finalize(job, success=True)
