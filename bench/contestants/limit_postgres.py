"""The limit: what hand-written SQL reaches on the same server.

A ceiling, not a queue: no retries, no leases, no priorities, no consumers.
"""

from __future__ import annotations

from typing import ClassVar

import psycopg

from . import Counts, OnEvent, Role
from .tables import Tables, sql

COUNTS = "SELECT (SELECT count(*) FROM job), (SELECT count(*) FROM log)"
PUBLISH = "INSERT INTO job (data) VALUES (%s) RETURNING pg_notify('job', '')"
COPY = "COPY job (data) FROM STDIN (FORMAT binary)"


class Limit:
    name: ClassVar[str] = "limit"
    role: ClassVar[Role] = "limit"
    shared: ClassVar[bool] = False

    def __init__(self, url: str) -> None:
        self.url = url
        self.tables = Tables(url, COUNTS)

    async def connect(self) -> psycopg.AsyncConnection:
        return await psycopg.AsyncConnection.connect(self.url, autocommit=True)

    async def setup(self) -> None:
        await self.join()
        await self.connection.execute(sql("limit_schema"))

    async def join(self) -> None:
        self.connection = await self.connect()
        self.cursor = self.connection.cursor(binary=True)

    async def publish(self, payload: bytes) -> None:
        await self.cursor.execute(PUBLISH, (payload,), prepare=True)

    async def publish_bulk(self, payloads: list[bytes]) -> None:
        async with self.cursor.copy(COPY) as copy:
            copy.set_types(["bytea"])
            for payload in payloads:
                await copy.write_row((payload,))

    async def counts(self) -> Counts:
        return await self.tables.counts()

    async def work(self, on_event: OnEvent) -> None:
        step = sql("limit_step")
        async with await self.connect() as connection:
            await connection.execute("LISTEN job")
            cursor = connection.cursor(binary=True)
            ids: list[int] = []
            while True:
                await cursor.execute(step, (ids,), prepare=True)
                rows = await cursor.fetchall()
                for _, data in rows:
                    on_event(data)
                ids = [row[0] for row in rows]
                if not ids:
                    await notified(connection)

    async def teardown(self) -> None:
        await self.connection.close()
        await self.tables.close()


async def notified(connection: psycopg.AsyncConnection) -> None:
    """Wait for one notification; those that came during the last statement count."""
    async for _ in connection.notifies(stop_after=1):
        pass
