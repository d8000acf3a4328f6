"""The limit on Redis: one stream and one group, acknowledged and read in batches.

A ceiling, not a queue: no retries, no schedules, no priorities, no dead letters.
"""

from __future__ import annotations

import os
from typing import ClassVar

import redis.asyncio as redis

from . import Counts, OnEvent, Role
from .keyspace import Group

STREAM, GROUP = "limit", "workers"
BATCH = 500
CHUNK = 5_000
"""Entries per pipeline: the server flushes to disk once for all that it has read by then."""


class Limit:
    name: ClassVar[str] = "limit"
    role: ClassVar[Role] = "limit"
    shared: ClassVar[bool] = True

    def __init__(self, url: str) -> None:
        self.client = redis.Redis.from_url(url)
        self.group = Group(url, STREAM)

    async def join(self) -> None:
        """Each command takes a connection from the client's pool."""

    async def setup(self) -> None:
        await self.client.xgroup_create(STREAM, GROUP, mkstream=True)

    async def publish(self, payload: bytes) -> None:
        await self.client.xadd(STREAM, {"d": payload})

    async def publish_bulk(self, payloads: list[bytes]) -> None:
        for start in range(0, len(payloads), CHUNK):
            async with self.client.pipeline(transaction=False) as pipeline:
                for payload in payloads[start : start + CHUNK]:
                    pipeline.xadd(STREAM, {"d": payload})
                await pipeline.execute()

    async def counts(self) -> Counts:
        return await self.group.counts()

    async def work(self, on_event: OnEvent) -> None:
        """Acknowledge the last batch and read the next one in one round trip."""
        me = str(os.getpid())
        done: list[bytes] = []
        while True:
            async with self.client.pipeline(transaction=False) as pipeline:
                if done:
                    pipeline.xack(STREAM, GROUP, *done)
                pipeline.xreadgroup(GROUP, me, {STREAM: ">"}, count=BATCH, block=None if done else 1000)
                *_, answer = await pipeline.execute()
            entries = answer[0][1] if answer else []
            for _, fields in entries:
                on_event(fields[b"d"])
            done = [entry for entry, _ in entries]

    async def teardown(self) -> None:
        await self.client.aclose()
        await self.group.close()
