"""rq: a SimpleWorker, which does not fork for every job; results are not kept."""

from __future__ import annotations

from typing import ClassVar

import redis
import rq

from . import Counts, OnEvent, Role
from .keyspace import Keyspace

WAITING = [
    ("LLEN", "rq:queue:default"),
    ("LLEN", "rq:queue:default:intermediate"),
    ("ZCARD", "rq:wip:default"),
]
handlers: list[OnEvent] = []
"""What `noop` calls: rq finds a function by its name, so that it cannot be a closure."""


def noop(data: bytes) -> None:
    handlers[-1](data)


class Rq:
    name: ClassVar[str] = "rq"
    role: ClassVar[Role] = "peer"

    def __init__(self, url: str) -> None:
        self.connection = redis.Redis.from_url(url)
        self.queue = rq.Queue(connection=self.connection)
        self.keys = Keyspace(url, *WAITING)

    async def setup(self) -> None:
        self.connection.ping()

    async def publish(self, payload: bytes) -> None:
        self.queue.enqueue(noop, payload, result_ttl=0)

    async def publish_bulk(self, payloads: list[bytes]) -> None:
        self.queue.enqueue_many(
            [rq.Queue.prepare_data(noop, (payload,), result_ttl=0) for payload in payloads]
        )

    async def counts(self) -> Counts:
        return await self.keys.counts()

    async def work(self, on_event: OnEvent) -> None:
        handlers.append(on_event)
        worker = rq.SimpleWorker([self.queue], connection=self.connection)
        worker.work(logging_level="WARNING")  # in the main thread, until SIGTERM

    async def teardown(self) -> None:
        self.connection.close()
        await self.keys.close()
