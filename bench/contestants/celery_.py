"""celery: one solo worker a process, late acknowledgement, 1,000 fetched ahead. It has no bulk interface."""

from __future__ import annotations

from typing import Any, ClassVar

import celery  # type: ignore[import-untyped]

from . import Counts, OnEvent, Role
from .keyspace import Keyspace

PREFETCH = 1000


class Celery:
    name: ClassVar[str] = "celery"
    role: ClassVar[Role] = "peer"

    def __init__(self, url: str) -> None:
        self.app = celery.Celery("bench", broker=url, set_as_current=False)
        self.app.conf.update(
            task_acks_late=True,
            task_ignore_result=True,
            worker_prefetch_multiplier=PREFETCH,
            worker_disable_rate_limits=True,
        )
        self.keys = Keyspace(url, ("LLEN", "celery"), ("HLEN", "unacked"))

    def task(self, on_event: OnEvent) -> Any:
        @self.app.task(name="noop")  # type: ignore[untyped-decorator]
        def noop(data: str) -> None:
            on_event(data)

        return noop

    async def setup(self) -> None:
        self.noop = self.task(lambda _: None)
        self.producer = self.app.producer_pool.acquire()

    async def publish(self, payload: bytes) -> None:
        self.noop.apply_async((payload.decode(),), producer=self.producer)

    async def publish_bulk(self, payloads: list[bytes]) -> None:
        for payload in payloads:
            await self.publish(payload)

    async def counts(self) -> Counts:
        return await self.keys.counts()

    async def work(self, on_event: OnEvent) -> None:
        self.task(on_event)
        worker = self.app.Worker(
            pool="solo", concurrency=1, without_gossip=True, without_mingle=True, without_heartbeat=True
        )
        worker.start()  # in the main thread, until SIGTERM

    async def teardown(self) -> None:
        self.producer.release()
        self.app.close()
        await self.keys.close()
