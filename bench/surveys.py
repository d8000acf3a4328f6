"""What looks at a whole store: a scrape of its metrics with many consumers, a sweep with many channels."""

from __future__ import annotations

import time
from datetime import timedelta

import holdfast
from holdfast import wiring
from holdfast.server import catalog
from holdfast.upkeep.rules import Keep, Rules
from holdfast.upkeep.sweeper import Sweeper

from .measures import Figures, LostEventsError, Stage
from .payload import stamped
from .rest import serving
from .sizes import Sizes

EVENTS = 10
TIMES = 3
"""Scrapes, or sweeps: the slowest counts."""


async def scrape(stage: Stage, sizes: Sizes) -> Figures:
    """Seconds of `GET /metrics` of a server, with a channel that has many consumers."""
    async with holdfast.connect(stage.url) as bus:
        for number in range(sizes.consumers):
            await bus.subscribe("many", f"consumer-{number}")
        await bus.publish_many("many", [holdfast.Event(data=stamped()) for _ in range(EVENTS)])
    await stage.settle()
    taken = []
    async with serving(stage.url) as [caller]:
        for _ in range(TIMES):
            began = time.perf_counter()
            text = (await caller.call("GET", "/metrics")).decode()
            taken.append(time.perf_counter() - began)
            _verify(text, sizes.consumers)
    return {"metrics": max(taken)}


def _verify(text: str, consumers: int) -> None:
    """Nothing was left out, as it is where the store takes too long."""
    failed = [line for line in _samples(text, catalog.SCRAPE_FAILED.name) if not line.endswith(" 0.0")]
    ready = [line for line in _samples(text, catalog.JOBS.name) if 'state="ready"' in line]
    right = [line for line in ready if line.endswith(f" {float(EVENTS)}")]
    if failed or len(right) < consumers:
        raise LostEventsError(f"{len(right)} of {consumers} consumers were exposed; failed: {failed}")


def _samples(text: str, name: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith(f"{name}{{")]


async def sweep(stage: Stage, sizes: Sizes) -> Figures:
    """Seconds of a sweep of a store with many channels, each with one consumer and one event."""
    async with holdfast.connect(stage.url) as bus:
        for number in range(sizes.channels):
            await bus.subscribe(f"channel-{number}", "consumer")
            await bus.publish(f"channel-{number}", stamped())
    await stage.settle()
    backend = wiring.backend(stage.url, connections=4)
    await backend.open()
    taken = []
    try:
        sweeper = Sweeper(backend, Rules(retention={">": Keep(timedelta(days=7))}), "bench")
        for _ in range(TIMES):
            began = time.perf_counter()
            swept = await sweeper.run_once()
            taken.append(time.perf_counter() - began)
            if swept is None:
                raise LostEventsError("somebody else swept the store")
        names = await backend.channels.names()
        if missing := sizes.channels - sum(name.startswith("channel-") for name in names):
            raise LostEventsError(f"{missing} channels are missing after a sweep")
    finally:
        await backend.close()
    return {"sweep": max(taken)}
