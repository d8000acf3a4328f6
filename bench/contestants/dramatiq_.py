"""dramatiq: eight threads a process, its default and its best for short jobs. It has no bulk interface."""

from __future__ import annotations

import asyncio
import threading
from typing import Any, ClassVar

import dramatiq
from dramatiq.brokers.redis import RedisBroker

from . import Counts, OnEvent, Role
from .keyspace import Keyspace

THREADS = 8


class Dramatiq:
    name: ClassVar[str] = "dramatiq"
    role: ClassVar[Role] = "peer"

    def __init__(self, url: str) -> None:
        self.broker = RedisBroker(url=url)  # type: ignore[no-untyped-call]
        self.keys = Keyspace(url, ("HLEN", "dramatiq:default.msgs"))

    def actor(self, on_event: OnEvent) -> dramatiq.Actor[Any, Any]:
        lock = threading.Lock()

        @dramatiq.actor(broker=self.broker, actor_name="noop")
        def noop(data: str) -> None:
            with lock:  # the handler counts without one
                on_event(data)

        return noop

    async def setup(self) -> None:
        self.noop = self.actor(lambda _: None)

    async def publish(self, payload: bytes) -> None:
        self.noop.send(payload.decode())

    async def publish_bulk(self, payloads: list[bytes]) -> None:
        for payload in payloads:
            await self.publish(payload)

    async def counts(self) -> Counts:
        return await self.keys.counts()

    async def work(self, on_event: OnEvent) -> None:
        self.actor(on_event)
        worker = dramatiq.Worker(self.broker, worker_threads=THREADS)
        worker.start()
        try:
            await asyncio.Event().wait()
        finally:
            worker.stop()

    async def teardown(self) -> None:
        self.broker.close()
        await self.keys.close()
