"""Holdfast through its public interface: one channel, one worker consumer."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import ClassVar, Protocol

import holdfast

from . import Counts, OnEvent, Role
from .jetstream import Subjects
from .keyspace import Log
from .tables import Tables

CHANNEL, CONSUMER = "bench", "worker"
TABLES = """
    SELECT (SELECT coalesce(sum(n), 0) FROM holdfast.jobs)::bigint + (
               SELECT coalesce(sum(holdfast.count_beyond(c.id, special, NULL)), 0)::bigint
               FROM holdfast.consumers c, unnest(ARRAY[false, true]) AS special),
           (SELECT coalesce(sum(n), 0)::bigint FROM holdfast.history WHERE outcome = 'done')
"""
DONE = ("HGET", "{holdfast}:counts:1", "done")


class Bystander(Protocol):
    """Counts what the store holds, without asking Holdfast."""

    async def counts(self) -> Counts: ...

    async def close(self) -> None: ...


class Holdfast:
    name: ClassVar[str] = "holdfast"
    role: ClassVar[Role] = "ours"

    def __init__(self, url: str, bystander: Bystander) -> None:
        self.url = url
        self.bystander = bystander
        self.opened = AsyncExitStack()

    async def setup(self) -> None:
        self.client = await self.opened.enter_async_context(holdfast.connect(self.url))
        await self.client.subscribe(CHANNEL, CONSUMER, lease="60s")

    async def publish(self, payload: bytes) -> None:
        await self.client.publish(CHANNEL, payload)

    async def publish_bulk(self, payloads: list[bytes]) -> None:
        await self.client.publish_many(CHANNEL, [holdfast.Event(data=payload) for payload in payloads])

    async def counts(self) -> Counts:
        return await self.bystander.counts()

    async def work(self, on_event: OnEvent) -> None:
        app = holdfast.App()

        @app.handler(CHANNEL, CONSUMER, lease="60s")
        async def noop(event: holdfast.Event) -> None:
            on_event(event.data)

        async with holdfast.connect(self.url) as bus:
            await app.run(bus)

    async def teardown(self) -> None:
        await self.opened.aclose()
        await self.bystander.close()


class OnPostgres(Holdfast):
    def __init__(self, url: str) -> None:
        super().__init__(url, Tables(url, TABLES))


class OnRedis(Holdfast):
    def __init__(self, url: str) -> None:
        super().__init__(url, Log(url, CHANNEL, DONE))


class OnNats(Holdfast):
    def __init__(self, url: str) -> None:
        super().__init__(url, Subjects(url, "HOLDFAST", published=CHANNEL, ended="HF.E.>"))
