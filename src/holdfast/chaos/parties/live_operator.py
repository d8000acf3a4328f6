"""A process that operates on live jobs and consumers: it cancels, requeues, pauses and changes policies.

Specification: url, history, channel, policies (by consumer), own (the consumers that it alone pauses and
changes), recent (a pattern for files with the ids of what was just published), until (a file that ends it),
and optionally pause (seconds after each time that it acts).
"""

from __future__ import annotations

import asyncio
import glob
import random
from pathlib import Path
from typing import Any

from holdfast.bus.client import Bus
from holdfast.chaos.parties.opening import opened

_RECENT, _PAUSE, _AT_ONCE, _BURST = 1_500, 0.005, 8, 60
_VERBS = ("cancel",) * 60 + ("cancel one",) * 20 + ("requeue",) * 20 + ("pause",) + ("subscribe",) * 2


class LiveOperator:
    """One of them."""

    def __init__(self, bus: Bus, spec: dict[str, Any]) -> None:
        self._bus, self._spec, self._channel = bus, spec, str(spec["channel"])
        self._recent: dict[str, None] = {}

    async def run(self) -> None:
        """Name what was published of late: much of it still waits."""
        while not Path(self._spec["until"]).exists():
            for file in glob.glob(self._spec["recent"]):
                self._recent |= dict.fromkeys(Path(file).read_text().split())
            self._recent = dict.fromkeys(list(self._recent)[-_RECENT:])
            names = random.sample(list(self._recent), min(_AT_ONCE, len(self._recent)))
            await asyncio.gather(*(self._act(random.choice(_VERBS), name) for name in names))
            await asyncio.sleep(self._spec.get("pause", _PAUSE))

    async def _act(self, verb: str, name: str) -> None:
        own = random.choice(self._spec["own"])
        match verb:
            case "pause":
                backend = self._bus.partitions.all[0].backend
                await backend.set_paused(self._channel, own, True)
                await asyncio.sleep(random.uniform(0, 0.6))
                await backend.set_paused(self._channel, own, False)
                await self._cancel_some()  # while all workers fall upon what has waited
            case "subscribe":
                policy = self._spec["policies"][own]
                backoff = random.choice((["20ms", "100ms"], ["10ms"], ["50ms"]))
                await self._bus.subscribe(self._channel, own, **policy | {"backoff": backoff})
            case "requeue":
                await self._requeue(name)
            case _:
                consumer = own if verb == "cancel one" else None
                await self._bus.cancel(self._channel, name, consumer=consumer)

    async def _cancel_some(self) -> None:
        names = random.sample(list(self._recent), min(_BURST, len(self._recent)))
        for first in range(0, len(names), _AT_ONCE):
            some = names[first : first + _AT_ONCE]
            await asyncio.gather(*(self._bus.cancel(self._channel, name) for name in some))

    async def _requeue(self, name: str) -> None:
        """One of an event's jobs, whatever has become of it."""
        jobs = await self._bus.find_jobs(self._channel, name)
        if known := [job for job in jobs if job.consumer in self._spec["policies"]]:
            job = random.choice(known)
            await self._bus.requeue(self._channel, job.consumer, job.id)


async def main(spec: dict[str, Any]) -> None:
    store, _ = opened(spec)
    async with Bus([store]) as bus:
        await LiveOperator(bus, spec).run()
