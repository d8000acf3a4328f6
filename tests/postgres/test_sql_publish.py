"""Publish from plain SQL, and on the caller's own connection."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row

import holdfast
from holdfast.backends.postgres import PostgresBackend
from holdfast.bus.client import Bus
from holdfast.contracts import Start
from holdfast.embedded import Postgres
from holdfast.model.event import Event
from holdfast.model.states import State
from kit import CHANNEL, CONSUMER, claim, claim_one, ids, publish, read_all, state, states, subscribe

Sql = psycopg.Connection[tuple[Any, ...]]


@pytest.fixture
async def asynchronous(database: str) -> AsyncIterator[psycopg.AsyncConnection[tuple[Any, ...]]]:
    async with await psycopg.AsyncConnection.connect(database) as connection:
        yield connection
        await connection.rollback()


@pytest.fixture(autouse=True)
async def _subscribed(backend: PostgresBackend) -> None:
    await subscribe(backend)


async def test_plain_sql_publishes_and_is_answered(sql: Sql, backend: PostgresBackend) -> None:
    row = sql.execute(
        """SELECT * FROM holdfast.publish('orders', '{"n": 1}', id => 'o-1', source => 'psql',
                                          type => 'order', key => 'k', headers => '{"trace": "x"}')"""
    ).fetchone()
    assert row is not None
    event_id, position, duplicate = row
    assert (event_id, duplicate) == ("o-1", False)
    job = await claim_one(backend)
    assert job.position == position
    event = job.event
    assert (event.id, event.source, event.type, event.key) == ("o-1", "psql", "order", "k")
    assert (event.json(), dict(event.headers)) == ({"n": 1}, {"trace": "x"})
    assert event.time is not None


async def test_a_transaction_that_publishes_cannot_be_prepared() -> None:
    """PostgreSQL refuses it, since a publish notifies; nothing of it stays."""
    with Postgres(settings={"max_prepared_transactions": "2", "fsync": "off"}) as server:
        url = server.create_database("prepared")
        async with holdfast.connect(url) as bus, await psycopg.AsyncConnection.connect(url) as connection:
            await bus.subscribe(CHANNEL, CONSUMER)

            async def by_sql() -> None:
                await connection.execute("SELECT holdfast.publish('orders', '1', id => 'o-1')")

            async def on_the_connection() -> None:
                await bus.publish(CHANNEL, 1, id="o-2", connection=connection)

            for publishes in (by_sql, on_the_connection):
                await publishes()
                with pytest.raises(psycopg.errors.FeatureNotSupported, match="NOTIFY"):
                    await connection.execute("PREPARE TRANSACTION 'first phase'")
                await connection.rollback()
            assert await bus.poll(CHANNEL, CONSUMER) == []
            assert await bus.read(CHANNEL) == []


async def test_plain_sql_has_defaults_and_makes_ids(sql: Sql, backend: PostgresBackend) -> None:
    rows = [sql.execute("SELECT event_id FROM holdfast.publish('orders', '1')").fetchone() for _ in range(2)]
    assert len({row for row in rows if row is not None}) == 2
    assert {(job.event.source, job.event.type, job.event.key) for job in await claim(backend)} == {
        ("default", "event", None)
    }


async def test_plain_sql_is_idempotent(sql: Sql, backend: PostgresBackend) -> None:
    query = "SELECT * FROM holdfast.publish('orders', %s::jsonb, id => 'o-1')"
    first = sql.execute(query, ['{"n": 1}']).fetchone()
    again = sql.execute(query, ['{"n": 1}']).fetchone()
    assert first is not None
    assert again == (*first[:2], True)
    with pytest.raises(psycopg.Error, match="o-1") as caught:
        sql.execute(query, ['{"n": 2}'])
    assert caught.value.sqlstate == "HF001"
    assert await states(backend) == {State.READY: 1}


async def test_plain_sql_schedules(sql: Sql, backend: PostgresBackend) -> None:
    later = datetime.now(UTC) + timedelta(hours=1)
    sql.execute(
        "SELECT holdfast.publish('orders', '1', id => 'later', at => %s, priority => 7::smallint)", [later]
    )
    [found] = await backend.leases.find_jobs(CHANNEL, "default", "later")
    assert (found.state, found.priority, found.due_at) == (State.SCHEDULED, 7, later)


@pytest.mark.parametrize("channel", ["Orders", "", "a..b", "a b", "x" * 129])
def test_plain_sql_refuses_bad_names(sql: Sql, channel: str) -> None:
    with pytest.raises(psycopg.errors.CheckViolation):
        sql.execute("SELECT holdfast.publish(%s, '1')", [channel])


async def test_plain_sql_respects_the_bound(sql: Sql, backend: PostgresBackend) -> None:
    await subscribe(backend, max_depth=1)
    await publish(backend, "a")
    with pytest.raises(psycopg.Error, match=CONSUMER) as caught:
        sql.execute("SELECT holdfast.publish('orders', '1')")
    assert caught.value.sqlstate == "HF002"


@pytest.mark.parametrize("count", [1, 3, 400])
async def test_a_rollback_of_the_caller_leaves_nothing(
    bus: Bus, backend: PostgresBackend, transaction: Sql, count: int
) -> None:
    events = [Event(n, f"e-{n}") for n in range(count)]
    await bus.publish_many(CHANNEL, events, connection=transaction)
    assert await claim(backend) == [], "not before the commit"
    transaction.rollback()
    assert await states(backend) == {}
    assert await read_all(backend) == []
    assert not (await publish(backend, "e-0"))[0].duplicate, "its key went with it"


@pytest.mark.parametrize("count", [1, 3, 400])
async def test_a_commit_of_the_caller_delivers_with_the_callers_own_rows(
    bus: Bus, backend: PostgresBackend, transaction: Sql, sql: Sql, count: int
) -> None:
    sql.execute("CREATE TABLE bookings (id text)")
    transaction.execute("INSERT INTO bookings VALUES ('mine')")
    events = [Event(n, f"e-{n}") for n in range(count)]
    receipts = await bus.publish_many(CHANNEL, events, connection=transaction)
    transaction.commit()
    assert [entry.position for entry in await read_all(backend)] == [r.position for r in receipts]
    assert len(await claim(backend, 1000)) == count
    assert sql.execute("SELECT * FROM bookings").fetchall() == [("mine",)]


async def test_an_async_connection_joins_as_well(
    bus: Bus, backend: PostgresBackend, asynchronous: psycopg.AsyncConnection[Any]
) -> None:
    await bus.publish(CHANNEL, 1, id="gone", connection=asynchronous)
    await asynchronous.rollback()
    await bus.publish(CHANNEL, 1, id="kept", connection=asynchronous)
    assert await claim(backend) == []
    await asynchronous.commit()
    assert ids(await claim(backend)) == ["kept"]


async def test_a_savepoint_of_the_caller_counts(bus: Bus, backend: PostgresBackend, transaction: Sql) -> None:
    await bus.publish(CHANNEL, 1, id="kept", connection=transaction)
    with transaction.transaction():
        await bus.publish(CHANNEL, 1, id="gone", connection=transaction)
        raise psycopg.Rollback
    transaction.commit()
    assert ids(await claim(backend)) == ["kept"]


async def test_the_callers_row_factory_does_not_matter(
    bus: Bus, backend: PostgresBackend, database: str
) -> None:
    async with await psycopg.AsyncConnection.connect(database, row_factory=dict_row) as connection:
        await bus.publish(CHANNEL, 1, id="a", connection=connection)
        receipt = await bus.publish(CHANNEL, 1, id="a", connection=connection)
        assert receipt.duplicate
    with psycopg.connect(database, row_factory=dict_row) as plain:
        assert (await bus.publish(CHANNEL, 1, id="a", connection=plain)).duplicate
    assert await state(backend, "a") is State.READY


async def test_a_conflict_inside_the_callers_transaction_is_the_same_error(
    bus: Bus, transaction: Sql
) -> None:
    await bus.publish(CHANNEL, 1, id="a")
    with pytest.raises(holdfast.IdConflict, match="'a'"):
        await bus.publish(CHANNEL, 2, id="a", connection=transaction)


@pytest.mark.parametrize(
    "level", [psycopg.IsolationLevel.REPEATABLE_READ, psycopg.IsolationLevel.SERIALIZABLE]
)
async def test_an_isolation_that_could_miss_a_consumer_is_refused(
    bus: Bus, backend: PostgresBackend, transaction: Sql, level: psycopg.IsolationLevel
) -> None:
    transaction.isolation_level = level
    with pytest.raises(holdfast.InvalidInput, match=level.name.lower().replace("_", " ")):
        await bus.publish(CHANNEL, 1, connection=transaction)
    transaction.rollback()
    with pytest.raises(psycopg.Error, match="READ COMMITTED") as caught:
        transaction.execute("SELECT holdfast.publish('orders', '1')")
    assert caught.value.sqlstate == "HF003"
    assert await states(backend) == {}


async def test_a_publish_held_open_does_not_stop_other_publishers_or_claims(
    bus: Bus, backend: PostgresBackend, transaction: Sql
) -> None:
    await bus.publish(CHANNEL, 1, id="held", connection=transaction)
    await publish(backend, "free")
    assert ids(await claim(backend)) == ["free"]
    transaction.commit()
    assert ids(await claim(backend)) == ["held"]


@pytest.mark.parametrize("special", [False, True])
@pytest.mark.parametrize("kind", ["earliest", "latest", "before", "after"])
async def test_a_subscribe_does_not_wait_for_a_publish_held_open_and_misses_nothing(
    backend: PostgresBackend, transaction: Sql, kind: str, special: bool
) -> None:
    """What is committed after the subscribe is new to a consumer; a time goes by when it was published."""
    priority = 3 if special else 0
    start: Start = await backend.now() if kind == "before" else kind
    await publish(backend, "there", priority=priority)
    transaction.execute(
        "SELECT holdfast.publish('orders', '1', id => 'held', priority => %s::smallint)", [priority]
    )
    if kind == "after":
        start = await backend.now()
    async with asyncio.timeout(60):
        await subscribe(backend, "late", start=start)
        await publish(backend, "meanwhile", priority=priority)
    transaction.commit()
    wanted = {"earliest": ["held", "meanwhile", "there"], "latest": ["held", "meanwhile"]}
    wanted |= {"before": wanted["earliest"], "after": ["meanwhile"]}
    assert sorted(ids(await claim(backend, consumer="late"))) == wanted[kind]


@pytest.mark.parametrize("start", ["earliest", "latest"])
async def test_a_first_bound_waits_for_a_publish_held_open_and_counts_it(
    bus: Bus, backend: PostgresBackend, transaction: Sql, start: Start
) -> None:
    await bus.publish(CHANNEL, 1, id="held", connection=transaction)
    bounding = asyncio.create_task(subscribe(backend, "late", start=start, max_depth=2))
    done, _ = await asyncio.wait([bounding], timeout=0.2)
    assert not done
    async with asyncio.timeout(60):
        transaction.commit()
        await bounding
        await publish(backend, "last")
        with pytest.raises(holdfast.Overloaded, match="holds 2 live jobs; its max_depth is 2"):
            await publish(backend, "too many")
    assert ids(await claim(backend, consumer="late")) == ["held", "last"]
