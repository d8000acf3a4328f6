# ruff: noqa: E402
"""What a transaction of the job's own costs: `python bench/transactions.py --help`.

A handler inserts one row into a table of the user's. Either it does so on a connection of a pool of its own,
in a transaction or in autocommit mode, and the job is completed after it; or in `job.transaction()`, whose
commit also completes the job. All take turns on one server that is as durable as that of `bench/queue.py`.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

import orjson
import psycopg

import holdfast
from holdfast.embedded import Postgres

CHANNEL, CONSUMER = "orders", "billing"
CONCURRENCY = 10
GOAL = 0.5
_DONE = "SELECT coalesce(sum(n), 0) FROM holdfast.history"
INSERT = "INSERT INTO effects (id, job) VALUES (%s, %s)"
SERVER = {"fsync": "on", "synchronous_commit": "on", "shared_buffers": "512MB", "max_wal_size": "4GB"}

OWN, WITHIN = "its own pool", "job.transaction()"
Idle = asyncio.Queue[psycopg.AsyncConnection[Any]]
Work = Callable[[holdfast.Event, holdfast.Job], Awaitable[None]]


async def _pool(stack: AsyncExitStack, url: str) -> Idle:
    idle = Idle()
    for _ in range(CONCURRENCY):
        made = await psycopg.AsyncConnection.connect(url, autocommit=True)
        idle.put_nowait(await stack.enter_async_context(made))
    return idle


async def in_autocommit(stack: AsyncExitStack, url: str) -> Work:
    """The effect on a pool's connection, one statement that commits by itself."""
    idle = await _pool(stack, url)

    async def bill(event: holdfast.Event, job: holdfast.Job) -> None:
        connection = await idle.get()
        await connection.execute(INSERT, (event.id, job.id))
        idle.put_nowait(connection)

    return bill


async def in_a_transaction(stack: AsyncExitStack, url: str) -> Work:
    """The effect on a pool's connection, in a transaction of its own, as pools give them out."""
    idle = await _pool(stack, url)

    async def bill(event: holdfast.Event, job: holdfast.Job) -> None:
        connection = await idle.get()
        async with connection.transaction():
            await connection.execute(INSERT, (event.id, job.id))
        idle.put_nowait(connection)

    return bill


async def within(stack: AsyncExitStack, url: str) -> Work:
    """The effect in the transaction that completes the job."""

    async def bill(event: holdfast.Event, job: holdfast.Job) -> None:
        async with job.transaction() as connection:
            await connection.execute(INSERT, (event.id, job.id))

    return bill


WAYS = {OWN: in_a_transaction, "its own pool, autocommit": in_autocommit, WITHIN: within}


async def turn(server: Postgres, database: str, way: str, count: int) -> float:
    """Jobs/s of one worker, from the start of the app to the last completion. Each effect is there once."""
    url = server.create_database(database)
    async with AsyncExitStack() as stack:
        bus = await stack.enter_async_context(holdfast.connect(url))
        sql = await stack.enter_async_context(await psycopg.AsyncConnection.connect(url, autocommit=True))
        await sql.execute("CREATE TABLE effects (id text PRIMARY KEY, job text)")
        await bus.subscribe(CHANNEL, CONSUMER)
        await bus.publish_many(CHANNEL, [holdfast.Event({"n": n}, f"e-{n}") for n in range(count)])
        await sql.execute("VACUUM ANALYZE")
        await sql.execute("CHECKPOINT")
        app, stop = holdfast.App(), asyncio.Event()
        app.handler(CHANNEL, CONSUMER, concurrency=CONCURRENCY)(await WAYS[way](stack, url))
        began = time.perf_counter()
        running = asyncio.create_task(app.run(bus, stop=stop))
        while await _one(sql, _DONE) < count:  # noqa: ASYNC110 - it is another process that knows
            await asyncio.sleep(0.02)
        took = time.perf_counter() - began
        stop.set()
        await running
        if await _one(sql, "SELECT count(*) FROM effects") != count:
            raise SystemExit(f"{way}: there are not {count} effects")
    return count / took


async def _one(sql: psycopg.AsyncConnection[Any], query: str) -> int:
    [found] = await (await sql.execute(query)).fetchone()  # type: ignore[misc]
    return int(found)


async def measure(rounds: int, count: int) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {way: [] for way in WAYS}
    with Postgres(settings=SERVER) as server:
        for number in range(rounds):
            for place, way in enumerate(sorted(WAYS, reverse=number % 2 == 1)):
                found[way].append(await turn(server, f"turn_{number}_{place}", way, count))
                print(f"round {number + 1}: {way}: {found[way][-1]:,.0f} jobs/s", file=sys.stderr)
    return found


def main() -> int:
    """0 when everything ran and each effect was there once, whatever the goal says."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=5_000, help="in each turn")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures here")
    parser.add_argument("--check", action="store_true", help="small and quick: does everything run?")
    options = parser.parse_args()
    rounds, jobs = (1, 200) if options.check else (options.rounds, options.jobs)
    found = asyncio.run(measure(rounds, jobs))
    if options.json:
        options.json.write_bytes(orjson.dumps(found, option=orjson.OPT_INDENT_2))
    medians = {way: statistics.median(each) for way, each in found.items()}
    for way, each in found.items():
        print(f"{way:26} {medians[way]:8,.0f} jobs/s ({min(each):,.0f} to {max(each):,.0f})")
    for way in WAYS.keys() - {WITHIN}:
        ratio = medians[WITHIN] / medians[way]
        print(f"{WITHIN} to {way}: {ratio:.2f}, goal {GOAL}: {'ok' if ratio >= GOAL else 'miss'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
