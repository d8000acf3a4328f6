"""Holdfast's worker with 32 handlers at once that wait, as handlers do that call something else."""

from __future__ import annotations

import asyncio
from typing import ClassVar

import holdfast

from . import OnEvent
from .holdfast_ import CHANNEL, CONSUMER, LEASE, Holdfast

CONCURRENCY = 32


class Waiting(Holdfast):
    milliseconds: ClassVar[int]

    async def work(self, on_event: OnEvent) -> None:
        app, seconds = holdfast.App(), self.milliseconds / 1000

        @app.handler(CHANNEL, CONSUMER, lease=LEASE, concurrency=CONCURRENCY)
        async def wait(event: holdfast.Event) -> None:
            on_event(event.data)
            await asyncio.sleep(seconds)

        async with holdfast.connect(self.url) as bus:
            await app.run(bus)


class Waiting1(Waiting):
    milliseconds = 1


class Waiting5(Waiting):
    milliseconds = 5


class Waiting50(Waiting):
    milliseconds = 50
