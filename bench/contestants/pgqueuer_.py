"""pgqueuer over asyncpg, all tables logged, 500 jobs a batch."""

from __future__ import annotations

from typing import ClassVar

import asyncpg  # type: ignore[import-untyped]
import pgqueuer
from pgqueuer.models import Job
from pgqueuer.queries import Queries

from . import Counts, OnEvent, Role
from .tables import Tables

BATCH = 500
CHUNK = 5_000
"""Jobs per enqueue call: faster than all of 20,000 in one, and than 1,000."""
COUNTS = """
    SELECT (SELECT count(*) FROM pgqueuer),
           (SELECT count(*) FROM pgqueuer_log WHERE status = 'successful')
"""


class PgQueuer:
    name: ClassVar[str] = "pgqueuer"
    role: ClassVar[Role] = "peer"
    shared: ClassVar[bool] = False

    def __init__(self, url: str) -> None:
        self.url = url
        self.tables = Tables(url, COUNTS)

    async def setup(self) -> None:
        await self.join()
        await self.queries.install()

    async def join(self) -> None:
        self.connection = await asyncpg.connect(self.url)
        self.queries = Queries.from_asyncpg_connection(self.connection)

    async def publish(self, payload: bytes) -> None:
        await self.queries.enqueue("noop", payload)

    async def publish_bulk(self, payloads: list[bytes]) -> None:
        for start in range(0, len(payloads), CHUNK):
            part: list[bytes | None] = [*payloads[start : start + CHUNK]]
            await self.queries.enqueue(["noop"] * len(part), part, [0] * len(part))

    async def counts(self) -> Counts:
        return await self.tables.counts()

    async def work(self, on_event: OnEvent) -> None:
        connection = await asyncpg.connect(self.url)
        queuer = pgqueuer.PgQueuer.from_asyncpg_connection(connection)

        @queuer.entrypoint("noop")
        async def noop(job: Job) -> None:
            on_event(job.payload or b"")

        await queuer.run(batch_size=BATCH)

    async def teardown(self) -> None:
        await self.connection.close()
        await self.tables.close()
