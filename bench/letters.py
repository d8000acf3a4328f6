"""The parts of the benchmark of dead letters: counting very many, and purging them beside workers."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator
from datetime import timedelta

import orjson
import psycopg

import holdfast
from holdfast.backends.postgres import PostgresBackend
from holdfast.contracts import Backend
from holdfast.model.deadletters import DeadCount, DeadFilter
from holdfast.model.decide import describe
from holdfast.model.job import Burial, Reason
from holdfast.model.policy import Policy

from .contestants import CONTESTANTS, holdfast_
from .crew import crew
from .figure import Figure, Figures
from .payload import stamped
from .rest import serving, serving_constant, timed
from .stores import PostgresStore, settle

TARGET = CONTESTANTS["postgres"]["holdfast"]
GRAVEYARD, UNDERTAKER = "graveyard", "undertaker"
DELTAS = 100
"""Burials whose deltas are not folded yet when the counts are read."""
WARM = 6
CALLS = 100
"""Calls over HTTP whose median is one figure: a single one is too short to time."""
PUBLISHED = 20_000
AT_ONCE = 500_000

# Three reasons, a hundred fingerprints, one error of a usual length each.
FILL = """
    INSERT INTO holdfast.dead_letters (consumer_id, channel_id, epoch, seq, token, created_at, died_at,
                                       priority, attempts, abandonments, worker, reason, fingerprint, errors)
    SELECT c.id, c.channel_id, 1, nextval('holdfast.event_seq'), 1, t.now,
           t.now - (n * interval '1 second'), 0, 5, 0, 'host-1',
           (ARRAY['max_attempts', 'terminal', 'expired'])[1 + mod(n, 3)], f.digits,
           jsonb_build_array(jsonb_build_object('attempt', 5, 'kind', 'KeyError', 'error',
               'order ' || n || ' was not found', 'fingerprint', f.digits))
    FROM (SELECT holdfast.now() AS now OFFSET 0) t, generate_series(%(first)s::bigint, %(last)s::bigint) n
    JOIN (SELECT c.*, row_number() OVER (ORDER BY id) - 1 AS place, count(*) OVER () AS total
          FROM holdfast.consumers c WHERE c.name LIKE %(names)s) c ON mod(n, c.total) = c.place
    CROSS JOIN LATERAL (SELECT left(md5(mod(n, 100)::text), 16) AS digits OFFSET 0) f
"""
INDEXES = """
    SELECT indexname, indexdef FROM pg_indexes
    WHERE schemaname = 'holdfast' AND tablename = 'dead_letters' AND indexname <> 'dead_letters_pkey'
"""
SEED = """
    SELECT ch.name, c.name, count(*) FROM holdfast.dead_letters d
    JOIN holdfast.consumers c ON c.id = d.consumer_id JOIN holdfast.channels ch ON ch.id = c.channel_id
    GROUP BY ch.name, c.name
"""


# counts


async def counts(store: PostgresStore, plan: argparse.Namespace) -> Figures:
    """Milliseconds to know how many are dead, by consumer: asked of the store, and over HTTP."""
    figures = {
        "counts": Figure("ms", "GROUP BY over the dead letters", 1000, lower=True),
        "GET /dlq-status": Figure("ms", "GROUP BY over the dead letters", 50, lower=True),
        "GET /dlq-status, none dead": Figure("ms", "the same call where none is dead", 1 / 1.2, lower=True),
        "GET /dlq-status, limit": Figure("ms", "uvicorn returning a constant", 0, lower=True),
    }
    async with (
        store.empty("dlq_counts") as url,
        store.empty("dlq_none") as nothing,
        _opened(url) as backend,
        _opened(nothing) as empty,
    ):
        for number in range(plan.consumers):
            for each in (backend, empty):
                await each.channels.subscribe(f"channel-{number % 4}", f"consumer-{number}", Policy.of())
        await _fill(url, plan.letters, "consumer-%")
        await _fold(backend)
        await _fold(empty)
        await _bury_some(backend)
        await settle(url)
        async with (
            await psycopg.AsyncConnection.connect(url, autocommit=True) as connection,
            serving(url) as (ours,),
            serving(nothing) as (none,),
            serving_constant() as (limit,),
        ):
            for _ in range(WARM):  # whoever looks often has prepared statements, and pages in memory
                await connection.execute(SEED)
                await backend.deadletters.counts()
                await timed((ours, none, limit), "/dlq-status", WARM)
            for _ in range(plan.rounds):
                began = time.perf_counter()
                found = await (await connection.execute(SEED)).fetchall()
                seed = 1000 * (time.perf_counter() - began)
                began = time.perf_counter()
                for _ in range(CALLS):
                    answer = await backend.deadletters.counts()
                counted = 1000 * (time.perf_counter() - began) / CALLS
                (call, beside, least), body = await timed((ours, none, limit), "/dlq-status", CALLS)
                rows = zip(
                    figures.values(), (seed, seed, beside, least), (counted, call, call, call), strict=True
                )
                for figure, theirs, mine in rows:
                    figure.theirs.append(theirs)
                    figure.ours.append(mine)
                _compare({(channel, consumer): number for channel, consumer, number in found}, answer, body)
    figures["counts"].more["letters"] = sum(number for _, _, number in found)
    return figures


def _compare(found: dict[tuple[str, str], int], answer: list[DeadCount], body: bytes) -> None:
    """All three must say the same."""
    total: Counter[tuple[str, str]] = Counter()
    for each in answer:
        total[each.channel, each.consumer] += each.count
    shown = {
        (each["channelId"], each["consumerId"]): each["deadCount"] for each in orjson.loads(body)["consumers"]
    }
    if not total == found == shown:
        raise SystemExit("the counts differ")


async def _bury_some(backend: Backend) -> None:
    """One by one, so that each leaves a delta that the counts have to add."""
    await backend.log.publish("channel-0", [holdfast.Event({"n": n}, f"e-{n}") for n in range(DELTAS)])
    failure = describe(KeyError("order 17"))
    for job in await backend.leases.claim("channel-0", "consumer-0", DELTAS, "bench"):
        await backend.leases.bury([Burial(job, Reason.TERMINAL, failure)])


# purge


async def purge(store: PostgresStore, plan: argparse.Namespace) -> Figures:
    """Events per second that workers handle, without and with a purge beside them."""
    figure = Figure("events/s", "without a purge", 0.8)
    async with store.empty("dlq_purge") as url, _opened(url) as backend:
        contestant = holdfast_.Holdfast(url)
        await contestant.setup()
        try:
            await backend.channels.subscribe(GRAVEYARD, UNDERTAKER, Policy.of())
            purger = Purger(backend, plan.chunk, plan.rate)
            for _ in range(plan.rounds):
                await _fill(url, plan.purged - await _dead(backend), UNDERTAKER)
                figure.theirs.append(await _drain(store, contestant, plan, contextlib.nullcontext()))
                figure.ours.append(await _drain(store, contestant, plan, purger.at_work()))
        finally:
            await contestant.teardown()
        if await _dead(backend) != (listed := await _listed(url)):
            raise SystemExit(f"{await _dead(backend)} dead letters are counted, and there are {listed}")
    figure.more = {"purged": purger.purged, "purged/s": purger.purged / purger.seconds}
    return {"purge": figure}


class Purger:
    """Purges in chunks, at a rate, while a block runs."""

    def __init__(self, backend: Backend, chunk: int, rate: int) -> None:
        self.backend, self.chunk, self.rate = backend, chunk, rate
        self.purged, self.seconds = 0, 0.0

    @contextlib.asynccontextmanager
    async def at_work(self) -> AsyncIterator[None]:
        over = asyncio.Event()
        task = asyncio.create_task(self._run(over))
        try:
            yield
            if task.done():
                raise SystemExit("all were purged before the workers were done; raise --purged")
        finally:
            over.set()
            await task

    async def _run(self, over: asyncio.Event) -> None:
        began, start = time.perf_counter(), self.purged
        while not over.is_set() and await self._step():
            ahead = (self.purged - start) / self.rate - (time.perf_counter() - began) if self.rate else 0
            await asyncio.sleep(max(0, ahead))
        self.seconds += time.perf_counter() - began

    async def _step(self) -> bool:
        page = await self.backend.deadletters.page(DeadFilter(GRAVEYARD, UNDERTAKER), None, self.chunk)
        ids = [letter.record.id for letter in page.letters]
        self.purged += sum(await self.backend.deadletters.purge(GRAVEYARD, UNDERTAKER, ids))
        return bool(ids)


async def _drain(
    store: PostgresStore,
    contestant: holdfast_.Holdfast,
    plan: argparse.Namespace,
    beside: contextlib.AbstractAsyncContextManager[None],
) -> float:
    """Events per second, from the first that is handled to the last that the store knows to be done."""
    for start in range(0, plan.events, PUBLISHED):
        number = min(PUBLISHED, plan.events - start)
        await contestant.publish_bulk([stamped() for _ in range(number)])
    await settle(contestant.url)

    async def drained() -> bool:
        return (await contestant.counts()).waiting == 0

    async with crew(TARGET, contestant.url, plan.processes) as workers:
        await workers.begin()
        async with beside:
            await workers.until_handled(plan.events, pause=0.01)
            await workers.until(drained, pause=0.005)
            return plan.events / ((time.perf_counter_ns() - workers.began) / 1e9)


# around it


@contextlib.asynccontextmanager
async def _opened(url: str) -> AsyncIterator[Backend]:
    backend = PostgresBackend(url)
    await backend.open()
    try:
        yield backend
    finally:
        await backend.close()


async def _fill(url: str, letters: int, names: str) -> None:
    """Dead letters straight into the table, where a trigger counts them; its indexes are made afterwards."""
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        indexes = await (await connection.execute(INDEXES)).fetchall()
        for name, _ in indexes:
            await connection.execute(f"DROP INDEX holdfast.{name}")
        for first in range(0, letters, AT_ONCE):
            last = min(letters, first + AT_ONCE) - 1
            await connection.execute(FILL, {"first": first, "last": last, "names": names})
            print(f"{last + 1:,} dead letters", file=sys.stderr, flush=True)
        for _, definition in indexes:
            await connection.execute(definition)


async def _fold(backend: Backend) -> None:
    lock = await backend.locks.acquire("bench", "bench", timedelta(hours=1))
    assert lock is not None
    await backend.deadletters.fold(timedelta(0), 0, lock)


async def _dead(backend: Backend) -> int:
    return sum(each.count for each in await backend.deadletters.counts())


async def _listed(url: str) -> int:
    async with await psycopg.AsyncConnection.connect(url) as connection:
        row = await (await connection.execute("SELECT count(*) FROM holdfast.dead_letters")).fetchone()
    return row[0] if row else 0
