"""The bystander's view of a contestant's streams on NATS."""

from __future__ import annotations

from contextlib import AsyncExitStack

import nats
from nats.js import JetStreamContext

from . import Counts


async def connected(url: str, opened: AsyncExitStack) -> JetStreamContext:
    """JetStream over a new connection, which is closed with `opened`."""
    client = await nats.connect(url)
    opened.push_async_callback(client.close)
    return client.jetstream(timeout=30)


class Pulled:
    """Counts of one pull consumer on a stream from which nothing is deleted."""

    def __init__(self, jetstream: JetStreamContext, stream: str, consumer: str) -> None:
        self.jetstream, self.stream, self.consumer = jetstream, stream, consumer

    async def counts(self) -> Counts:
        known = await self.jetstream.consumer_info(self.stream, self.consumer)
        waiting = (known.num_pending or 0) + (known.num_ack_pending or 0)
        stream = await self.jetstream.stream_info(self.stream)
        return Counts(waiting, stream.state.messages - waiting)
