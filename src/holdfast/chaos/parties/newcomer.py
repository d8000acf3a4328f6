"""A process that comes and goes: it subscribes at the beginning of a log, sees its jobs made, and leaves.

Specification: url, history, channel, prefix (of its names), until (a file that ends it), and optionally
events (how many it publishes first), pause (seconds until the next one) and step (how much of it is removed
at once). It begins with removing whoever was left half removed.
"""

from __future__ import annotations

import asyncio
from itertools import count
from pathlib import Path
from typing import Any

from holdfast.bus.client import Bus
from holdfast.chaos import history
from holdfast.chaos.parties.opening import opened
from holdfast.contracts import Backend
from holdfast.model.errors import NotFound
from holdfast.model.event import Event

STEP, EVENTS = 20, 60
_PAUSE, _STEPS = 0.02, 3


async def remove_all(store: Backend, channel: str, file: Path) -> None:
    """Everybody who joined and has not left: whoever is half removed is in no list, so histories tell."""
    calls = history.read(file.parent, f"*-{file.stem.partition('-')[2]}")
    left = {item["name"] for call in history.of(calls, "left") for item in call.items}
    joined = {item["name"] for call in history.of(calls, "joins") for item in call.items}
    for name in sorted(joined - left):
        await remove(store, channel, name)


async def remove(store: Backend, channel: str, name: str, step: int = STEP) -> None:
    try:
        while not (await store.remove_consumer(channel, name, step)).done:
            await asyncio.sleep(0)
    except NotFound:
        return


async def main(spec: dict[str, Any]) -> None:
    store, notes = opened(spec)
    async with Bus([store]) as bus:
        channel = spec["channel"]
        if events := spec.get("events", EVENTS):
            await bus.publish_many(channel, [Event({"n": number}) for number in range(events)])
        await remove_all(store, channel, Path(spec["history"]))
        for number in count():
            if Path(spec["until"]).exists():
                return
            name = f"{spec['prefix']}-{number}"
            notes.happened("joins", {"name": name})
            await bus.subscribe(channel, name, start="earliest")
            for _ in range(_STEPS):  # so that its jobs are made, here or by others
                await bus.partitions.all[0].step()
            await store.claim(channel, name, EVENTS, "newcomer")
            await remove(store, channel, name, spec.get("step", STEP))
            notes.happened("left", {"name": name})
            await asyncio.sleep(spec.get("pause", _PAUSE))
