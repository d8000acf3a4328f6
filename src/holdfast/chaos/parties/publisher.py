"""A process that publishes: singles one by one, or batches, each again with the same ids until it is acked.

Specification: url, history, channel, prefix, batch (1: the single path), and count, or until (a file that
ends it). With a file it pauses after each batch in proportion to its size, so that workers keep up.
"""

from __future__ import annotations

import asyncio
from itertools import count
from pathlib import Path
from typing import Any

from holdfast.bus.client import Bus
from holdfast.chaos.history import History
from holdfast.chaos.recorder import Recorded
from holdfast.model.errors import Unavailable
from holdfast.model.event import Event
from holdfast.wiring import backend


async def acked(bus: Bus, channel: str, events: list[Event]) -> None:
    """Publish until the store has answered: the outcome of a call without an answer is unknown."""
    while True:
        try:
            await bus.publish_many(channel, events)
        except Unavailable:
            await asyncio.sleep(0.05)
        else:
            return


async def main(spec: dict[str, Any]) -> None:
    watched: Any = Recorded(backend(spec["url"]), History(Path(spec["history"])))
    end = Path(spec["until"]) if "until" in spec else None
    async with Bus([watched]) as bus:
        for number in count() if end else range(spec["count"]):
            if end and end.exists():
                return
            ids = [f"{spec['prefix']}-{number}-{part}" for part in range(spec["batch"])]
            await acked(bus, spec["channel"], [Event({"of": name}, name) for name in ids])
            await asyncio.sleep(len(ids) * 0.004 if end else 0)
