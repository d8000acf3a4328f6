"""taskiq over a Redis stream, the broker that acknowledges: 100 tasks at once, 100 fetched ahead."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

from taskiq import AsyncTaskiqDecoratedTask
from taskiq.api import run_receiver_task
from taskiq_redis import RedisStreamBroker

from . import Counts, OnEvent, Role
from .keyspace import Group

AT_ONCE = 100
CONNECTIONS = 50
"""Publishes at the same time: it has no bulk interface, and each of them takes a connection."""


class Taskiq:
    name: ClassVar[str] = "taskiq"
    role: ClassVar[Role] = "peer"

    def __init__(self, url: str) -> None:
        self.broker = RedisStreamBroker(url, max_connection_pool_size=2 * AT_ONCE)
        self.group = Group(url, self.broker.queue_name)

    def task(self, on_event: OnEvent) -> AsyncTaskiqDecoratedTask[Any, Any]:
        @self.broker.task(task_name="noop")
        async def noop(data: str) -> None:
            on_event(data)

        return noop

    async def setup(self) -> None:
        self.noop = self.task(lambda _: None)
        await self.broker.startup()

    async def publish(self, payload: bytes) -> None:
        await self.noop.kiq(payload.decode())

    async def publish_bulk(self, payloads: list[bytes]) -> None:
        left = iter(payloads)

        async def publisher() -> None:
            for payload in left:
                await self.publish(payload)

        await asyncio.gather(*(publisher() for _ in range(CONNECTIONS)))

    async def counts(self) -> Counts:
        return await self.group.counts()

    async def work(self, on_event: OnEvent) -> None:
        self.task(on_event)
        await run_receiver_task(
            self.broker,
            run_startup=True,
            validate_params=False,
            max_async_tasks=AT_ONCE,
            max_prefetch=AT_ONCE,
        )

    async def teardown(self) -> None:
        await self.broker.shutdown()
        await self.group.close()
