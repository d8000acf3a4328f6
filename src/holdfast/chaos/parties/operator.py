"""A process that operates on dead letters: it ends what others began, then redrives, purges and recounts.

Specification: url, history, channel, consumers, until (a file after which nothing new is begun),
and optionally ttl (seconds that it holds a lock).
"""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

from holdfast.bus.client import Bus
from holdfast.chaos.parties.opening import opened
from holdfast.deadletters.items import Filter
from holdfast.deadletters.operation import Act, Request
from holdfast.deadletters.operations import Operations
from holdfast.deadletters.runner import Runner
from holdfast.deadletters.service import DeadLetters
from holdfast.model.errors import Unavailable

ACTS: tuple[Act, ...] = ("redrive", "redrive", "purge")
_TTL, _CHUNK, _PAUSE, _SELDOM = 2.0, 5, 0.3, 0.2


async def main(spec: dict[str, Any]) -> None:
    store, _ = opened(spec)
    async with Bus([store]) as bus:
        letters = DeadLetters(bus)
        operations = Operations(letters)
        runner = Runner(operations, bus.name, chunk=_CHUNK, ttl=timedelta(seconds=spec.get("ttl", _TTL)))
        while True:
            for each in await operations.unfinished():
                await runner.follow(each.id)
            if Path(spec["until"]).exists():
                return
            if random.random() < _SELDOM:
                with suppress(Unavailable):  # a recount waits for the lock of whoever was killed with it
                    await letters.verify()
            channel, consumer = random.choice(spec["consumers"])
            wanted = Filter.of(channel=channel, consumer=consumer, kinds=("job",))
            await runner.do(Request(random.choice(ACTS), wanted), "the rig")
            await asyncio.sleep(_PAUSE)
