"""Holdfast through its public interface: one channel, one worker consumer, the same code on every store."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import ClassVar

import holdfast
from holdfast.model.states import LIVE, State

from . import Counts, OnEvent, Role

CHANNEL, CONSUMER = "bench", "worker"
LEASE = "60s"


class Holdfast:
    name: ClassVar[str] = "holdfast"
    role: ClassVar[Role] = "ours"
    shared: ClassVar[bool] = True

    def __init__(self, url: str) -> None:
        self.url = url
        self.opened = AsyncExitStack()

    async def setup(self) -> None:
        await self.join()
        await self.client.subscribe(CHANNEL, CONSUMER, lease=LEASE)

    async def join(self) -> None:
        self.client = await self.opened.enter_async_context(holdfast.connect(self.url))

    async def publish(self, payload: bytes) -> None:
        await self.client.publish(CHANNEL, payload)

    async def publish_bulk(self, payloads: list[bytes]) -> None:
        await self.client.publish_many(CHANNEL, [holdfast.Event(data=payload) for payload in payloads])

    async def counts(self) -> Counts:
        """By the states that the contract shows, over the publisher's connections: workers have their own."""
        channels = self.client.partitions.all[0].backend.channels
        states = (await channels.consumer_stats(CHANNEL, CONSUMER)).states
        return Counts(sum(states.get(state, 0) for state in LIVE), states.get(State.DONE, 0))

    async def work(self, on_event: OnEvent) -> None:
        app = holdfast.App()

        @app.handler(CHANNEL, CONSUMER, lease=LEASE)
        async def noop(event: holdfast.Event) -> None:
            on_event(event.data)

        async with holdfast.connect(self.url) as bus:
            await app.run(bus)

    async def teardown(self) -> None:
        await self.opened.aclose()
