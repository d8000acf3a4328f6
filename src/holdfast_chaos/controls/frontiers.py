"""Defects of frontiers and rows on PostgreSQL: each is a guard less in a function (I1, I3, I5, I6, I17)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import psycopg

from holdfast.bus.client import Bus
from holdfast.model.errors import LeaseLost, Overloaded
from holdfast.model.event import Event
from holdfast.model.job import Job
from holdfast_chaos.controls.control import Control
from holdfast_chaos.rig import CHANNEL, CONSUMER, Rig, until

Connection = psycopg.AsyncConnection[tuple[Any, ...]]
Scene = Callable[[Rig], Awaitable[object]]


def _replaced(function: str, arguments: str, returns: str) -> str:
    return f"CREATE OR REPLACE FUNCTION holdfast.{function}({arguments}) {returns}"


def _on_frontiers(change: str) -> str:
    """Changes each frontier as it is written; `o` is the one before it."""
    return f"""
        CREATE FUNCTION rig.weaken() RETURNS trigger LANGUAGE plpgsql AS $$
        DECLARE
            o holdfast.frontiers := holdfast.frontier(NEW.consumer_id, NEW.special);
        BEGIN
            {change}
            RETURN NEW;
        END $$;
        CREATE TRIGGER weak BEFORE INSERT ON holdfast.frontiers
        FOR EACH ROW WHEN (NEW.number > 0) EXECUTE FUNCTION rig.weaken();"""


_ANY_TOKEN = """
    ALTER FUNCTION holdfast.complete(text, text, bigint[], integer[], bigint[]) RENAME TO complete_fenced;
    CREATE FUNCTION holdfast.complete(
        p_channel text, p_consumer text, p_tokens bigint[], p_counts integer[], p_seqs bigint[]
    ) RETURNS TABLE (seq bigint, token bigint) LANGUAGE sql AS $$
        WITH newest AS (
            SELECT n.seq, (SELECT max(j.token) FROM holdfast.job(c.id, n.seq) j) AS token
            FROM unnest(p_seqs) AS n (seq), holdfast.consumer_id(p_channel, p_consumer) AS c (id)
        ), grouped AS (
            SELECT g.token, count(*)::integer AS n, array_agg(g.seq ORDER BY g.seq) AS seqs
            FROM newest g GROUP BY g.token
        )
        SELECT f.* FROM (
            SELECT array_agg(token ORDER BY token) AS tokens, array_agg(n ORDER BY token) AS counts
            FROM grouped) t
        CROSS JOIN LATERAL holdfast.complete_fenced(p_channel, p_consumer, t.tokens, t.counts, ARRAY(
            SELECT s FROM grouped CROSS JOIN LATERAL unnest(seqs) AS s ORDER BY token, s)) f
    $$;"""
_NO_RUNNING = _on_frontiers(
    """NEW.passed := regexp_replace(NEW.passed::text, '^\\d+:(\\d+):.*', '\\1:\\1:')::pg_snapshot;
       NEW.reach := regexp_replace(NEW.reach::text, '^\\d+:(\\d+):.*', '\\1:\\1:')::pg_snapshot;"""
)
_NO_MOVE = _on_frontiers(
    "NEW.passed := o.passed; NEW.reach := o.reach; NEW.at_tx := o.at_tx; NEW.at_seq := o.at_seq;"
)
_NO_PLACE = _replaced(
    "has_passed",
    "f holdfast.frontiers, p_epoch integer, p_tx xid8, p_seq bigint",
    """RETURNS boolean LANGUAGE sql IMMUTABLE
       RETURN p_epoch < f.epoch OR p_epoch = f.epoch AND pg_visible_in_snapshot(p_tx, f.passed)""",
)
_NO_ROW_LOCK = _replaced(
    "lock_members",
    "p_consumer_ids integer[], p_tokens bigint[]",
    "RETURNS boolean LANGUAGE sql AS 'SELECT true'",
)
_NO_DEPTH = _replaced(
    "add_depth", "p_channel_id integer, p_count integer", "RETURNS void LANGUAGE sql AS 'SELECT'"
)
_NO_MARK = """
    CREATE FUNCTION rig.weaken() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
    CREATE TRIGGER weak BEFORE INSERT ON holdfast.ahead FOR EACH ROW EXECUTE FUNCTION rig.weaken();"""
_NO_FRONTIER_LOCK = """
    DO $do$
    DECLARE
        v_old text := pg_get_functiondef('holdfast.take_out'::regproc);
        v_new text := regexp_replace(v_old, 'PERFORM holdfast.lock_frontier[^;]*;', '');
    BEGIN
        ASSERT v_new <> v_old;
        EXECUTE v_new;
    END $do$"""


_WAITING = """
    SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'
"""


async def _waiting(connection: Connection) -> None:
    """Give the others time until one more of them waits for a lock; a defect may let it pass."""

    async def count() -> int:
        [found] = await (await connection.execute(_WAITING)).fetchone() or [0]
        return int(found)

    before = await count()

    async def one_more() -> bool:
        return await count() > before

    with suppress(TimeoutError):
        await until(one_more, 0.5)


async def _publish(bus: Bus, count: int) -> None:
    await bus.publish_many(CHANNEL, [Event({"n": n}, f"e-{n}") for n in range(count)])


async def _finish(bus: Bus, jobs: list[Job]) -> None:
    for job in jobs:
        with suppress(LeaseLost):
            await bus.finalize(job, success=True)


async def _late_answer(rig: Rig) -> None:
    """A worker says that a job is done which somebody else has by then."""
    async with rig.bus("slow") as slow, rig.bus("quick") as quick:
        await quick.subscribe(CHANNEL, CONSUMER)
        await _publish(quick, 3)
        jobs = await slow.poll(CHANNEL, CONSUMER, limit=3)
        await quick.requeue(CHANNEL, CONSUMER, jobs[0].id)
        again = await quick.poll(CHANNEL, CONSUMER)
        await _finish(slow, jobs)
        await _finish(quick, again)


async def _late_commit(rig: Rig) -> None:
    """A publish commits after a later one was taken up."""
    store = rig.recorded("publisher")
    await store.open()
    async with rig.bus("worker") as bus, await psycopg.AsyncConnection.connect(rig.url) as connection:
        await bus.subscribe(CHANNEL, CONSUMER)
        await store.log.publish(CHANNEL, [Event({}, "late")], connection=connection)
        await store.log.publish(CHANNEL, [Event({}, "quick")])
        await _finish(bus, await bus.poll(CHANNEL, CONSUMER, limit=5))
        await connection.commit()
        await store.log.publish(CHANNEL, [Event({}, "last")])
        for _ in range(2):
            await _finish(bus, await bus.poll(CHANNEL, CONSUMER, limit=5))
    await store.close()


async def _one_by_one(rig: Rig) -> None:
    """What waits is claimed one by one."""
    async with rig.bus("worker") as bus:
        await bus.subscribe(CHANNEL, CONSUMER)
        await _publish(bus, 3)
        for _ in range(3):
            await bus.poll(CHANNEL, CONSUMER)


async def _cancelled(rig: Rig) -> None:
    """One job is cancelled that is leased, and one that waits behind it."""
    async with rig.bus("worker") as bus:
        await bus.subscribe(CHANNEL, CONSUMER)
        await _publish(bus, 5)
        jobs = await bus.poll(CHANNEL, CONSUMER, limit=2)
        for name in ("e-1", "e-3"):
            await bus.cancel(CHANNEL, name)
        await _finish(bus, jobs)
        await _finish(bus, await bus.poll(CHANNEL, CONSUMER, limit=5))


@asynccontextmanager
async def _row_held(rig: Rig) -> Any:
    """Somebody holds the rows that are leased."""
    async with await psycopg.AsyncConnection.connect(rig.url) as connection:
        await connection.execute("SELECT FROM holdfast.jobs FOR UPDATE")
        yield connection


async def _two_leave_a_row(rig: Rig) -> None:
    """Two jobs that were leased together end at once, one done and one failed."""
    async with rig.bus("worker") as bus, rig.bus("other") as other:
        await bus.subscribe(CHANNEL, CONSUMER, backoff=["0s"])
        await _publish(bus, 3)
        first, second, third = await bus.poll(CHANNEL, CONSUMER, limit=3)
        async with await psycopg.AsyncConnection.connect(rig.url, autocommit=True) as looking:
            async with _row_held(rig):
                done = asyncio.ensure_future(bus.finalize(first, success=True))
                await _waiting(looking)
                failed = asyncio.ensure_future(other.finalize(second, success=False, error="no"))
                await _waiting(looking)
            await asyncio.gather(done, failed)
        await _finish(bus, [third, *await bus.poll(CHANNEL, CONSUMER, limit=3)])


async def _cancelled_while_claimed(rig: Rig) -> None:
    """A job is cancelled while a claim of it is not committed."""
    async with rig.bus("operator") as bus:
        await bus.subscribe(CHANNEL, CONSUMER)
        await _publish(bus, 1)
        async with (
            await psycopg.AsyncConnection.connect(rig.url, autocommit=True) as looking,
            await psycopg.AsyncConnection.connect(rig.url) as claiming,
        ):
            await claiming.execute("SELECT * FROM holdfast.claim(%s, %s, 1, 'w')", [CHANNEL, CONSUMER])
            cancelling = asyncio.ensure_future(bus.cancel(CHANNEL, "e-0"))
            await _waiting(looking)
            await claiming.commit()
            await cancelling


async def _bounded(rig: Rig) -> None:
    async with rig.bus("publisher") as bus:
        await bus.subscribe(CHANNEL, CONSUMER, max_depth=3)
        for number in range(6):
            with suppress(Overloaded):
                await bus.publish(CHANNEL, {"n": number}, id=f"e-{number}")


def _control(name: str, defect: str, breaks: str, scene: Scene, sql: str, *, drained: bool = True) -> Control:
    async def play(rig: Rig, sound: bool) -> set[str]:
        if not sound:
            async with await psycopg.AsyncConnection.connect(rig.url) as connection:
                await connection.execute(sql)
        await scene(rig)
        return await rig.broken(drained=drained)

    return Control(name, defect, breaks, play, ("postgres",))


CONTROLS = [
    _control(
        "forgotten-transactions",
        "A frontier forgets which transactions were running when its window ended.",
        "I1",
        _late_commit,
        _NO_RUNNING,
    ),
    _control(
        "unmarked-exit",
        "A job that leaves the order of the log is not marked.",
        "I3",
        _cancelled,
        _NO_MARK,
    ),
    _control(
        "placeless-frontier",
        "Whether an event is taken up does not depend on the frontier's place in its window.",
        "I3",
        _cancelled,
        _NO_PLACE,
    ),
    _control(
        "unlocked-cancel",
        "A cancel looks at what waits without the lock of the frontier.",
        "I3",
        _cancelled_while_claimed,
        _NO_FRONTIER_LOCK,
        drained=False,
    ),
    _control(
        "unlocked-row",
        "A job leaves a row of several jobs without a lock on it.",
        "I3",
        _two_leave_a_row,
        _NO_ROW_LOCK,
    ),
    _control(
        "any-lease",
        "The function that completes jobs does not compare tokens.",
        "I5",
        _late_answer,
        _ANY_TOKEN,
    ),
    _control("standing-frontier", "A frontier does not move.", "I6", _one_by_one, _NO_MOVE, drained=False),
    _control(
        "uncounted-depth",
        "Jobs of a bounded consumer are not counted as they are published.",
        "I17",
        _bounded,
        _NO_DEPTH,
        drained=False,
    ),
]
