"""The limit by ranges: hand-written SQL with one lease row and one history row for 500 jobs.

A ceiling, not a design: an event that commits after a later one was taken up is skipped.
"""

from __future__ import annotations

import asyncio
from typing import ClassVar

import psycopg

from . import OnEvent, Role
from .limit_postgres import Limit, notified
from .tables import Tables, sql

COUNTS = """
    SELECT (SELECT count(*) FROM log) - ended.jobs, ended.jobs
    FROM (SELECT coalesce(sum(jobs), 0) AS jobs FROM history) AS ended
"""
PUBLISH = "INSERT INTO log (data) VALUES (%s)"
COPY = "COPY log (data) FROM STDIN (FORMAT binary)"
TAKE = "SELECT above, upto FROM take(%s)"


class Ranges(Limit):
    name: ClassVar[str] = "ranges"
    role: ClassVar[Role] = "limit"
    shared: ClassVar[bool] = False

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.tables = Tables(url, COUNTS)

    async def setup(self) -> None:
        await self.join()
        await self.connection.execute(sql("ranges_schema"))

    async def join(self) -> None:
        await super().join()
        self.announcer = Announcer(await self.connect())

    async def publish(self, payload: bytes) -> None:
        await self.cursor.execute(PUBLISH, (payload,), prepare=True)
        self.announcer.announce()

    async def publish_bulk(self, payloads: list[bytes]) -> None:
        async with self.cursor.copy(COPY) as copy:
            copy.set_types(["bytea"])
            for payload in payloads:
                await copy.write_row((payload,))

    async def work(self, on_event: OnEvent) -> None:
        read = sql("ranges_read")
        async with await self.connect() as connection:
            await connection.execute("LISTEN job")
            cursor = connection.cursor(binary=True)
            done = 0
            while True:
                await cursor.execute(TAKE, (done,), prepare=True)
                row = await cursor.fetchone()
                assert row is not None
                above, upto = row
                if upto is None:
                    done = 0
                    await notified(connection)
                    continue
                await cursor.execute(read, (above, upto), prepare=True)
                for (data,) in await cursor.fetchall():
                    on_event(data)
                done = upto

    async def teardown(self) -> None:
        await self.announcer.close()
        await super().teardown()


class Announcer:
    """Notifies after publishes, one notification at a time for all that came meanwhile.

    A notification within each publish would make commits wait for one another.
    """

    def __init__(self, connection: psycopg.AsyncConnection) -> None:
        self.connection = connection
        self.wanted = asyncio.Event()
        self.task = asyncio.create_task(self.run())

    def announce(self) -> None:
        self.wanted.set()

    async def run(self) -> None:
        while True:
            await self.wanted.wait()
            self.wanted.clear()
            await self.connection.execute("NOTIFY job")

    async def close(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)
        await self.connection.close()
