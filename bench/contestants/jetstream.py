"""The bystander's view of a contestant's streams on NATS."""

from __future__ import annotations

from contextlib import AsyncExitStack

import nats
from nats.js import JetStreamContext
from nats.js.api import AckPolicy, ConsumerConfig

from . import Counts


async def connected(url: str, opened: AsyncExitStack) -> JetStreamContext:
    """JetStream over a new connection, which is closed with `opened`."""
    client = await nats.connect(url)
    opened.push_async_callback(client.close)
    return client.jetstream(timeout=30)


class Subjects:
    """Counts messages by subject: those published, and the records of those that have ended.

    Each count is a consumer that nobody reads: the server keeps the number of messages before it.
    """

    def __init__(self, url: str, stream: str, *, published: str, ended: str) -> None:
        self.url = url
        self.stream = stream
        self.filters = {"published": published, "ended": ended}
        self.opened = AsyncExitStack()
        self.jetstream: JetStreamContext | None = None

    async def counts(self) -> Counts:
        jetstream = self.jetstream or await self.begin()
        published, ended = [
            (await jetstream.consumer_info(self.stream, name)).num_pending or 0 for name in self.filters
        ]
        return Counts(published - ended, ended)

    async def begin(self) -> JetStreamContext:
        self.jetstream = await connected(self.url, self.opened)
        for name, subject in self.filters.items():
            config = ConsumerConfig(
                durable_name=name, filter_subject=subject, ack_policy=AckPolicy.NONE, mem_storage=True
            )
            await self.jetstream.add_consumer(self.stream, config)
        return self.jetstream

    async def close(self) -> None:
        await self.opened.aclose()


class Pulled:
    """Counts of one pull consumer on a stream from which nothing is deleted."""

    def __init__(self, jetstream: JetStreamContext, stream: str, consumer: str) -> None:
        self.jetstream, self.stream, self.consumer = jetstream, stream, consumer

    async def counts(self) -> Counts:
        known = await self.jetstream.consumer_info(self.stream, self.consumer)
        waiting = (known.num_pending or 0) + (known.num_ack_pending or 0)
        stream = await self.jetstream.stream_info(self.stream)
        return Counts(waiting, stream.state.messages - waiting)
