"""Holdfast through its public interface: one channel, one worker consumer."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import ClassVar

import holdfast

from . import Counts, Gate, OnEvent, Role
from .tables import Tables

CHANNEL, CONSUMER = "bench", "worker"
COUNTS = """
    SELECT (SELECT count(*) FROM holdfast.jobs),
           (SELECT count(*) FROM holdfast.job_log WHERE outcome = 'done')
"""


class Holdfast:
    name: ClassVar[str] = "holdfast"
    role: ClassVar[Role] = "ours"

    def __init__(self, url: str) -> None:
        self.url = url
        self.tables = Tables(url, queue="holdfast.jobs", counts=COUNTS)
        self.opened = AsyncExitStack()

    async def setup(self) -> None:
        self.client = await self.opened.enter_async_context(holdfast.connect(self.url))
        await self.client.subscribe(CHANNEL, CONSUMER, lease="60s")

    async def publish(self, payload: bytes) -> None:
        await self.client.publish(CHANNEL, payload)

    async def publish_bulk(self, payloads: list[bytes]) -> None:
        await self.client.publish_many(CHANNEL, [holdfast.Event(data=payload) for payload in payloads])

    def hold(self) -> AbstractAsyncContextManager[Gate]:
        return self.tables.hold()

    async def counts(self) -> Counts:
        return await self.tables.counts()

    async def work(self, on_event: OnEvent) -> None:
        app = holdfast.App()

        @app.handler(CHANNEL, CONSUMER, lease="60s")
        async def noop(event: holdfast.Event) -> None:
            on_event(event.data)

        async with holdfast.connect(self.url) as bus:
            await app.run(bus)

    async def teardown(self) -> None:
        await self.opened.aclose()
        await self.tables.close()
