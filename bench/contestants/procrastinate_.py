"""procrastinate: 30 jobs at once over a pool of 34, its best configuration for short jobs."""

from __future__ import annotations

from typing import ClassVar

import procrastinate
from procrastinate.types import JSONDict

from . import Counts, OnEvent, Role
from .tables import Tables

CONCURRENCY = 30
POOL = CONCURRENCY + 4
COUNTS = """
    SELECT count(*) FILTER (WHERE status IN ('todo', 'doing')),
           count(*) FILTER (WHERE status = 'succeeded')
    FROM procrastinate_jobs
"""


class Procrastinate:
    name: ClassVar[str] = "procrastinate"
    role: ClassVar[Role] = "peer"

    def __init__(self, url: str) -> None:
        self.url = url
        self.tables = Tables(url, COUNTS)

    def app(self, on_event: OnEvent, pool: int) -> procrastinate.App:
        connector = procrastinate.PsycopgConnector(conninfo=self.url, min_size=pool, max_size=pool)
        app = procrastinate.App(connector=connector)

        @app.task(name="noop")
        async def noop(data: str) -> None:
            on_event(data)

        return app

    async def setup(self) -> None:
        self.publisher = self.app(lambda _: None, pool=1)
        await self.publisher.open_async()
        await self.publisher.schema_manager.apply_schema_async()
        self.task = self.publisher.tasks["noop"]

    async def publish(self, payload: bytes) -> None:
        await self.task.defer_async(data=payload.decode())

    async def publish_bulk(self, payloads: list[bytes]) -> None:
        jobs: list[JSONDict] = [{"data": payload.decode()} for payload in payloads]
        await self.task.batch_defer_async(*jobs)

    async def counts(self) -> Counts:
        return await self.tables.counts()

    async def work(self, on_event: OnEvent) -> None:
        app = self.app(on_event, POOL)
        async with app.open_async():
            await app.run_worker_async(concurrency=CONCURRENCY, install_signal_handlers=False)

    async def teardown(self) -> None:
        await self.publisher.close_async()
        await self.tables.close()
