"""The bystander's view of a contestant's streams on NATS."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AsyncExitStack

import nats
from nats.aio.msg import Msg
from nats.js import JetStreamContext
from nats.js.api import AckPolicy, ConsumerConfig

from . import Counts


async def connected(url: str, opened: AsyncExitStack) -> JetStreamContext:
    """JetStream over a new connection, which is closed with `opened`."""
    client = await nats.connect(url)
    opened.push_async_callback(client.close)
    return client.jetstream(timeout=30)


class Ended:
    """Counts published messages by their subject, and ended jobs by Holdfast's records: one for each job that
    ended by itself, one for each lease with all of its members that have.

    The first count is that of a consumer that nobody reads: the server keeps how many messages it has left.
    """

    def __init__(self, url: str, stream: str, published: str) -> None:
        self.url, self.stream, self.published = url, stream, published
        self.opened = AsyncExitStack()
        self.jetstream: JetStreamContext | None = None
        self.ended: dict[str, int] = {}

    async def counts(self) -> Counts:
        jetstream = self.jetstream or await self.begin()
        published = (await jetstream.consumer_info(self.stream, "published")).num_pending or 0
        ended = sum(self.ended.values())
        return Counts(published - ended, ended)

    async def begin(self) -> JetStreamContext:
        self.jetstream = await connected(self.url, self.opened)
        config = ConsumerConfig(
            durable_name="published",
            filter_subject=self.published,
            ack_policy=AckPolicy.NONE,
            mem_storage=True,
        )
        await self.jetstream.add_consumer(self.stream, config)
        for subject, read in (("HF.E.>", lambda _: 1), ("HF.W.>", members_ended)):

            async def note(message: Msg, read: Callable[[bytes], int] = read) -> None:
                self.ended[message.subject] = read(message.data)

            await self.jetstream.subscribe(
                subject, stream=self.stream, cb=note, config=ConsumerConfig(ack_policy=AckPolicy.NONE)
            )
        return self.jetstream

    async def close(self) -> None:
        await self.opened.aclose()


def members_ended(record: bytes) -> int:
    """Return how many members of a lease its record says have ended."""
    (_, every), _, ended, *_ = json.loads(record)
    return sum(steps(part[2] if len(part) > 1 else every) + 1 for part in ended)


def steps(runs: str) -> int:
    """Return how many steps there are from the first of some sequences to the last."""
    return sum(int(run.partition("x")[2] or 1) for run in runs.split())


class Pulled:
    """Counts of one pull consumer on a stream from which nothing is deleted."""

    def __init__(self, jetstream: JetStreamContext, stream: str, consumer: str) -> None:
        self.jetstream, self.stream, self.consumer = jetstream, stream, consumer

    async def counts(self) -> Counts:
        known = await self.jetstream.consumer_info(self.stream, self.consumer)
        waiting = (known.num_pending or 0) + (known.num_ack_pending or 0)
        stream = await self.jetstream.stream_info(self.stream)
        return Counts(waiting, stream.state.messages - waiting)
