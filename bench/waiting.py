"""A great many jobs that wait: what it costs to count them, to come to their store, and to keep them."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from statistics import median
from typing import Any

import holdfast
from holdfast import wiring
from holdfast.contracts import Backend
from holdfast.model.states import LIVE, State
from holdfast.server.catalog import COUNTED

from .connecting import JOBS, arrival
from .consuming import publish_backlog
from .contestants.holdfast_ import CHANNEL, CONSUMER, LEASE
from .measures import Figures, LostEventsError, Stage
from .payload import stamped
from .sizes import Sizes
from .stores import patient

DEAD = 100
"""Jobs that are buried before anything is counted."""
ASKED = 20
"""Times after the first that each count is asked for."""
CONSUMERS = 11
BULK = 1_000
COUNTS: dict[str, Callable[[Backend], Awaitable[Any]]] = {
    "backlogs": lambda backend: backend.channels.backlogs(COUNTED),
    "consumer_stats": lambda backend: backend.channels.consumer_stats(CHANNEL, CONSUMER),
    "job_times": lambda backend: backend.channels.job_times(),
    "dead_counts": lambda backend: backend.deadletters.counts(),
}


async def waiting(stage: Stage, sizes: Sizes) -> Figures:
    """Milliseconds of each count; seconds until a new process is connected and has polled; its memory beside
    that of one which came while the store was empty."""
    empty = await arrival(stage.url)
    await publish_backlog(stage, sizes.waiting, "bulk", sizes.at_once)
    await _bury(stage.url)
    await stage.settle()
    full = await arrival(stage.url)
    if (empty["jobs"], full["jobs"]) != (0, JOBS):
        raise LostEventsError(f"first polls leased {empty['jobs']} jobs and {full['jobs']}, not 0 and {JOBS}")
    figures: Figures = {}
    for name, taken in (await _count(stage.url, sizes.waiting - DEAD)).items():
        figures |= {f"{name}_first": taken[0], f"{name}_median": median(taken[1:])}
    return figures | {
        "connect_empty": empty["connect"],
        "connect_waiting": full["connect"],
        "poll_waiting": full["poll"],
        "memory_above": (full["memory"] - empty["memory"]) / 1e6,
    }


async def _bury(url: str) -> None:
    async with holdfast.connect(url) as bus:
        buried = 0
        while buried < DEAD:
            jobs = await bus.poll(CHANNEL, CONSUMER, limit=DEAD - buried)
            await bus.finalize_many(jobs, success=False, terminal=True)
            buried += len(jobs)


async def _count(url: str, live: int) -> dict[str, list[float]]:
    """Milliseconds of each call over one new connection, the first before all others, and proof that the
    numbers are right."""
    backend = wiring.backend(url, connections=1)
    await backend.open()
    try:
        taken: dict[str, list[float]] = {name: [] for name in COUNTS}
        found: dict[str, Any] = {}
        for _ in range(1 + ASKED):
            for name, ask in COUNTS.items():
                began = time.perf_counter()
                found[name] = await ask(backend)
                taken[name].append(1000 * (time.perf_counter() - began))
    finally:
        await backend.close()
    states = found["consumer_stats"].states
    [backlog] = [each for each in found["backlogs"] if (each.channel, each.consumer) == (CHANNEL, CONSUMER)]
    [times] = [each for each in found["job_times"] if (each.channel, each.consumer) == (CHANNEL, CONSUMER)]
    counted = sum(states.get(state, 0) for state in LIVE)
    if counted != live or sum(backlog.live.values()) < min(live, COUNTED) or times.ready is None:
        raise LostEventsError(f"{live} jobs wait, and the counts say {counted}, {backlog} and {times}")
    dead = sum(each.count for each in found["dead_counts"])
    if (dead, states.get(State.DEAD)) != (DEAD, DEAD) or times.dead is None:
        raise LostEventsError(f"{DEAD} jobs are dead, and the counts say {dead}, {states} and {times}")
    return taken


async def memory(stage: Stage, sizes: Sizes) -> Figures:
    """Bytes of the server for a job of each further consumer: a channel with eleven, less one with one."""
    async with patient(stage.url) as client, holdfast.connect(stage.url) as bus:

        async def used() -> int:
            await stage.settle()
            return int((await client.info("memory"))["used_memory"])

        seen = [await used()]
        for number in (1, CONSUMERS):
            channel = f"beside-{number}"
            for consumer in range(number):
                await bus.subscribe(channel, f"consumer-{consumer}", lease=LEASE)
            for start in range(0, sizes.waiting, BULK):
                size = min(BULK, sizes.waiting - start)
                await bus.publish_many(channel, [holdfast.Event(data=stamped()) for _ in range(size)])
            seen.append(await used())
    alone, together = seen[1] - seen[0], seen[2] - seen[1]
    return {"bytes_per_job": (together - alone) / (CONSUMERS - 1) / sizes.waiting}
