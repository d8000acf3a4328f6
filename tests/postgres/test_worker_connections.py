"""How many connections processes hold, and what happens where the server has none left."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

import holdfast
from holdfast.backends.postgres import PostgresBackend
from holdfast.bus.app import when_connected
from holdfast.bus.client import Bus
from holdfast.embedded import Postgres
from holdfast.model.errors import TooManyConnections
from kit import CHANNEL, CONSUMER, in_memory, until

Sql = psycopg.Connection[tuple[Any, ...]]
QUICK = {"fsync": "off", "full_page_writes": "off", "shared_buffers": "32MB"}
RESERVED = 3
"""superuser_reserved_connections"""


@pytest.fixture(scope="module")
def hundred() -> Iterator[Postgres]:
    """A server with PostgreSQL's own default of max_connections."""
    with in_memory():
        server = Postgres(settings=QUICK | {"max_connections": "100"}).start()
    yield server
    server.stop()


def ours(sql: Sql) -> int:
    """How many connections Holdfast has, those that are being made included."""
    [(count,)] = sql.execute(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    ).fetchall()
    return int(count)


def states(sql: Sql) -> dict[str, int]:
    return dict(
        sql.execute("SELECT outcome, sum(n)::integer FROM holdfast.history GROUP BY outcome").fetchall()
    )


class Fleet:
    """Workers with a bus each, as processes have."""

    def __init__(self, url: str, **policy: Any) -> None:
        self._url, self._policy = url, policy
        self.seen: Counter[str] = Counter()
        self.working: set[int] = set()
        self.runs: list[asyncio.Task[None]] = []
        self._stops: list[asyncio.Event] = []

    def start(self, number: int) -> None:
        for index in range(len(self.runs), len(self.runs) + number):
            self._stops.append(stop := asyncio.Event())
            self.runs.append(asyncio.create_task(self._work(index, stop)))

    async def _work(self, index: int, stop: asyncio.Event) -> None:
        app = holdfast.App()

        @app.handler(CHANNEL, CONSUMER, start="earliest", concurrency=2, **self._policy)
        async def handle(event: holdfast.Event) -> None:
            self.seen[event.id] += 1
            self.working.add(index)
            await asyncio.sleep(event.json()["takes"])

        bus = Bus([PostgresBackend(self._url)])
        await when_connected(bus.partitions.open)
        async with bus:
            self.working.add(index)
            await app.run(bus, stop=stop)

    async def stop(self, *indices: int) -> None:
        for index in indices:
            self._stops[index].set()
        await asyncio.gather(*(self.runs[index] for index in indices))


@asynccontextmanager
async def fleet(url: str, **policy: Any) -> AsyncIterator[Fleet]:
    made = Fleet(url, **policy)
    try:
        yield made
    finally:
        for run in made.runs:
            run.cancel()
        await asyncio.gather(*made.runs, return_exceptions=True)


async def test_sixty_workers_need_hardly_more_than_sixty_connections(
    hundred: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.backends.postgres.pool._LOOK", 1.0)
    url = hundred.create_database("sixty")
    async with holdfast.connect(url) as bus, fleet(url) as workers, AsyncExitStack() as stack:
        sql = stack.enter_context(psycopg.connect(url, autocommit=True))
        await bus.subscribe(CHANNEL, CONSUMER)
        workers.start(60)

        async def all_work() -> bool:
            assert not [run for run in workers.runs if run.done()], "one of them ended"
            return len(workers.working) == 60

        await until(all_work)
        for n in range(10):
            await bus.publish_many(CHANNEL, [holdfast.Event({"takes": 0}, f"e-{n}-{i}") for i in range(60)])
        most = list[int]()

        async def steady() -> bool:
            """Work goes on, and few connections do."""
            await bus.publish(CHANNEL, {"takes": 0.01})
            await asyncio.sleep(0.05)
            most.append(ours(sql))
            return len(most) >= 20 and max(most[-20:]) <= 70

        await until(steady)
        assert most[-1] >= 60
        done = 600 + len(most)
        for _ in range(10):
            stack.enter_context(psycopg.connect(url))
        findings = {each.subject: each for each in await bus.partitions.all[0].backend.check()}
        assert "of max_connections = 100 are taken" in findings["connections"].message

        async def finished() -> bool:
            return states(sql) == {"done": done}

        await until(finished)
        assert set(workers.seen.values()) == {1}
        await workers.stop(*range(60))


async def test_at_the_limit_nobody_ends_and_nothing_is_lost(
    hundred: Postgres, caplog: pytest.LogCaptureFixture
) -> None:
    """Twelve workers where there are eight connections: those that are in work, the others wait."""
    url = hundred.create_database("few")
    with psycopg.connect(hundred.url, autocommit=True) as admin:
        admin.execute("CREATE ROLE few LOGIN PASSWORD 'few' CONNECTION LIMIT 8")
        admin.execute("ALTER DATABASE few OWNER TO few")
    limited = url.replace(url.partition("//")[2].partition("@")[0], "few:few")
    jobs = 200
    async with AsyncExitStack() as stack:
        sql = stack.enter_context(psycopg.connect(url, autocommit=True))
        async with holdfast.connect(limited) as bus:
            await bus.subscribe(CHANNEL, CONSUMER, lease="1s")
            # Some take longer than their lease: it is extended over the one connection that there is.
            await bus.publish_many(
                CHANNEL,
                [holdfast.Event({"takes": 1.6 if n % 20 == 0 else 0.01}, str(n)) for n in range(jobs)],
            )
        workers = await stack.enter_async_context(fleet(limited, lease="1s"))
        workers.start(12)

        async def finished() -> bool:
            return states(sql) == {"done": jobs}

        await until(finished)
        assert not [run for run in workers.runs if run.done()], "one of them ended"
        assert set(workers.seen.values()) == {1}, "a lease was lost"
        assert len(workers.working) == 8
        assert "ALTER ROLE … CONNECTION LIMIT" in caplog.text
        with pytest.raises(TooManyConnections, match="refuses a connection"):
            await PostgresBackend(limited).open()

        await workers.stop(*sorted(workers.working)[:4])

        async def all_were_let_in() -> bool:
            return len(workers.working) == 12

        await until(all_were_let_in)


WORKERS = """
import holdfast
app = holdfast.App()

@app.handler("orders", "billing", start="earliest")
async def handle(event: holdfast.Event) -> None:
    return
"""


@contextmanager
def programs(url: str, folder: Path, number: int) -> Iterator[Callable[[], bool]]:
    """So many times `holdfast worker`. Yields whether all of them run."""
    (folder / "shop.py").write_text(WORKERS)
    command = [sys.executable, "-m", "holdfast.cli", "worker", "shop:app"]
    with ExitStack() as stack:
        made = list[subprocess.Popen[bytes]]()
        for each in range(number):
            log = stack.enter_context((folder / f"{each}.log").open("w"))
            made.append(
                subprocess.Popen(command, cwd=folder, env=os.environ | {"HOLDFAST_URL": url}, stderr=log)
            )
            stack.enter_context(made[-1])
            stack.callback(made[-1].kill)
        yield lambda: all(each.poll() is None for each in made)


def logged(folder: Path) -> str:
    return "".join(each.read_text() for each in folder.glob("*.log"))


@pytest.mark.slow
@pytest.mark.parametrize("limit", [100, 40])
async def test_sixty_programs_share_the_connections_that_there_are(tmp_path: Path, limit: int) -> None:
    """With 40 connections some of them wait, and nobody ends."""
    with in_memory(), Postgres(settings=QUICK | {"max_connections": str(limit)}) as server:
        url = server.create_database("programs")
        async with holdfast.connect(url, connections=1) as bus:
            await bus.subscribe(CHANNEL, CONSUMER)
            with psycopg.connect(url, autocommit=True) as sql, programs(url, tmp_path, 60) as all_run:
                await share(bus, sql, all_run, min(60, limit - RESERVED - 2))
    assert ("max_connections" in logged(tmp_path)) == (limit < 60)


async def share(bus: Bus, sql: Sql, all_run: Callable[[], bool], least: int) -> None:
    """Wait until at least so many are in work, and publish five events a second for a while."""
    published, counts = 0, list[int]()

    async def at_work() -> bool:
        assert all_run(), "one of them ended"
        return ours(sql) - 1 >= least

    async def steady() -> bool:
        nonlocal published
        await bus.publish(CHANNEL, {"n": published})
        await asyncio.sleep(0.2)
        published += 1
        counts.append(ours(sql))
        return published >= 50 and max(counts[-25:]) <= 70

    async def finished() -> bool:
        assert all_run(), "one of them ended"
        return states(sql) == {"done": published}

    await until(at_work, 300)
    await until(steady, 120)
    await until(finished)
