"""Holdfast through its public interface: one channel, one worker consumer."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import ClassVar, Protocol

import holdfast
from holdfast import wiring
from holdfast.contracts import Backend
from holdfast.model.states import LIVE, State

from . import Counts, OnEvent, Role
from .jetstream import Ended
from .keyspace import Log

CHANNEL, CONSUMER = "bench", "worker"
LEASE = "60s"
DONE = ("HGET", "{holdfast}:counts:1", "done")


class Bystander(Protocol):
    """Counts what the store holds, apart from what publishes and works."""

    async def counts(self) -> Counts: ...

    async def close(self) -> None: ...


class States:
    """Counts by the states that the contract shows, over connections of its own."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.backend: Backend | None = None

    async def counts(self) -> Counts:
        if self.backend is None:
            self.backend = wiring.backend(self.url, connections=1)
            await self.backend.open()
        states = (await self.backend.channels.consumer_stats(CHANNEL, CONSUMER)).states
        return Counts(sum(states.get(state, 0) for state in LIVE), states.get(State.DONE, 0))

    async def close(self) -> None:
        if self.backend is not None:
            await self.backend.close()


class Holdfast:
    name: ClassVar[str] = "holdfast"
    role: ClassVar[Role] = "ours"
    shared: ClassVar[bool] = True

    def __init__(self, url: str, bystander: Bystander) -> None:
        self.url = url
        self.bystander = bystander
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
        return await self.bystander.counts()

    async def work(self, on_event: OnEvent) -> None:
        app = holdfast.App()

        @app.handler(CHANNEL, CONSUMER, lease=LEASE)
        async def noop(event: holdfast.Event) -> None:
            on_event(event.data)

        async with holdfast.connect(self.url) as bus:
            await app.run(bus)

    async def teardown(self) -> None:
        await self.opened.aclose()
        await self.bystander.close()


class OnPostgres(Holdfast):
    def __init__(self, url: str) -> None:
        super().__init__(url, States(url))


class OnRedis(Holdfast):
    def __init__(self, url: str) -> None:
        super().__init__(url, Log(url, CHANNEL, DONE))


class OnNats(Holdfast):
    def __init__(self, url: str) -> None:
        super().__init__(url, Ended(url, "HOLDFAST", CHANNEL))
