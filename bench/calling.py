"""Publishing over REST: many callers at once, each with a connection, one event in each call."""

from __future__ import annotations

import asyncio
import time
from statistics import quantiles

import orjson

from .contestants import Counts
from .contestants.holdfast_ import CHANNEL
from .measures import Figures, Stage, verify
from .payload import stamped
from .rest import Caller, serving
from .sizes import Sizes

PATH = f"/api/v1/channels/{CHANNEL}/events"
WARM = 10
"""Calls of each caller before any is timed."""


async def rest(stage: Stage, sizes: Sizes) -> Figures:
    """Calls a second, and milliseconds of a call."""
    async with serving(stage.url, sizes.callers) as callers:
        await _call(callers, WARM)
        await stage.settle()
        began = time.perf_counter()
        taken = await _call(callers, sizes.calls)
        seconds = time.perf_counter() - began
    total = sizes.callers * (WARM + sizes.calls)
    await verify(stage, Counts(waiting=total, done=0))
    cuts = quantiles(taken, n=100, method="inclusive")
    return {"rest": len(taken) / seconds, "rest_p50": cuts[49], "rest_p99": cuts[98]}


async def _call(callers: list[Caller], calls: int) -> list[float]:
    """So many publishes by each, one after the other; milliseconds of each call."""
    taken: list[float] = []

    async def publish(caller: Caller) -> None:
        for _ in range(calls):
            body = orjson.dumps({"data": stamped().decode()})
            began = time.perf_counter()
            await caller.call("POST", PATH, body)
            taken.append(1000 * (time.perf_counter() - began))

    await asyncio.gather(*map(publish, callers))
    return taken
