"""The limit on NATS: one stream and one pull consumer, fetched and acknowledged in batches.

A ceiling, not a queue: no schedules, no priorities, no dead letters, and acknowledgements that the server
writes to disk when it likes.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import ClassVar

from nats.errors import TimeoutError as NothingThere
from nats.js.api import AckPolicy, ConsumerConfig

from . import Counts, OnEvent, Role
from .jetstream import Pulled, connected

STREAM, SUBJECT, CONSUMER = "LIMIT", "limit", "workers"
BATCH = 500
CHUNK = 2_000
"""Publishes on their way at the same time."""


class Limit:
    name: ClassVar[str] = "limit"
    role: ClassVar[Role] = "limit"
    shared: ClassVar[bool] = True

    def __init__(self, url: str) -> None:
        self.url = url
        self.opened = AsyncExitStack()

    async def join(self) -> None:
        self.jetstream = await connected(self.url, self.opened)

    async def setup(self) -> None:
        await self.join()
        await self.jetstream.add_stream(name=STREAM, subjects=[SUBJECT])
        config = ConsumerConfig(
            durable_name=CONSUMER, ack_policy=AckPolicy.EXPLICIT, ack_wait=60, max_ack_pending=-1
        )
        await self.jetstream.add_consumer(STREAM, config)
        self.pulled = Pulled(self.jetstream, STREAM, CONSUMER)

    async def publish(self, payload: bytes) -> None:
        await self.jetstream.publish(SUBJECT, payload)

    async def publish_bulk(self, payloads: list[bytes]) -> None:
        for start in range(0, len(payloads), CHUNK):
            part = payloads[start : start + CHUNK]
            await asyncio.gather(*[await self.jetstream.publish_async(SUBJECT, payload) for payload in part])

    async def counts(self) -> Counts:
        return await self.pulled.counts()

    async def work(self, on_event: OnEvent) -> None:
        async with AsyncExitStack() as opened:
            jetstream = await connected(self.url, opened)
            subscription = await jetstream.pull_subscribe_bind(CONSUMER, STREAM)
            while True:
                try:
                    messages = await subscription.fetch(BATCH, timeout=1)
                except NothingThere:
                    continue
                for message in messages:
                    on_event(message.data)
                for message in messages:
                    await message.ack()

    async def teardown(self) -> None:
        await self.opened.aclose()
