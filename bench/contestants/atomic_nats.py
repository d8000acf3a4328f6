"""The limit on NATS of a publish of two messages, all or none: an event and a note in one atomic batch.

What records anything beside its event pays at least this. It is consumed as `limit` is.
"""

from __future__ import annotations

import secrets
from typing import ClassVar

import nats
import orjson
from nats.js.api import AckPolicy, ConsumerConfig, StreamConfig

from . import Counts, Role
from .jetstream import Pulled
from .limit_nats import CONSUMER, STREAM, SUBJECT, Limit

NOTE = "note"
EVENTS = 500
"""In one batch of a bulk: the server takes 1,000 messages."""
PATIENCE = 30.0


class RefusedError(Exception):
    """The server took no batch, with its reason."""


class Atomic(Limit):
    name: ClassVar[str] = "atomic"
    role: ClassVar[Role] = "limit"

    async def join(self) -> None:
        self.client = await nats.connect(self.url)
        self.opened.push_async_callback(self.client.close)
        self.jetstream = self.client.jetstream(timeout=PATIENCE)

    async def setup(self) -> None:
        await self.join()
        config = StreamConfig(name=STREAM, subjects=[SUBJECT, NOTE], allow_atomic=True)
        await self.jetstream.add_stream(config)
        durable = ConsumerConfig(
            durable_name=CONSUMER,
            filter_subject=SUBJECT,
            ack_policy=AckPolicy.EXPLICIT,
            ack_wait=60,
            max_ack_pending=-1,
        )
        await self.jetstream.add_consumer(STREAM, durable)
        self.pulled = Pulled(self.jetstream, STREAM, CONSUMER)

    async def publish(self, payload: bytes) -> None:
        await self.append([(SUBJECT, payload), (NOTE, b"1")])

    async def publish_bulk(self, payloads: list[bytes]) -> None:
        for start in range(0, len(payloads), EVENTS):
            part = payloads[start : start + EVENTS]
            await self.append([message for each in part for message in ((SUBJECT, each), (NOTE, b"1"))])

    async def append(self, messages: list[tuple[str, bytes]]) -> None:
        """One batch. Only its last message is answered, once all of it is on the disk."""
        batch = secrets.token_hex(11)
        *before, (subject, data) = messages
        for number, (each, content) in enumerate(before, start=1):
            headers = {"Nats-Batch-Id": batch, "Nats-Batch-Sequence": str(number)}
            await self.client.publish(each, content, headers=headers)
        headers = {
            "Nats-Batch-Id": batch,
            "Nats-Batch-Sequence": str(len(messages)),
            "Nats-Batch-Commit": "1",
        }
        reply = orjson.loads((await self.client.request(subject, data, PATIENCE, headers=headers)).data)
        if reply.get("batch") != batch or reply.get("count") != len(messages):
            raise RefusedError(f"a batch of {len(messages)} messages: {reply}")

    async def counts(self) -> Counts:
        """Of the messages in the stream half are notes."""
        found = await self.pulled.counts()
        messages = found.waiting + (found.done or 0)
        if messages % 2:
            raise RefusedError(f"half a batch is in the stream, which has {messages} messages")
        return Counts(found.waiting, messages // 2 - found.waiting)
