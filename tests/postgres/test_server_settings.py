"""Whatever an administrator sets for a role or a database, the store behaves the same."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from psycopg.sql import SQL, Identifier, Literal

from holdfast.backends.postgres import PostgresBackend
from holdfast.model.deadletters import DeadFilter
from holdfast.model.errors import InvalidInput
from holdfast.model.event import Event
from holdfast.model.job import Burial, Failure, Reason, Retry
from kit import CHANNEL, CONSUMER, MINUTE, claim, complete, read_all, step, subscribe
from pooler import PgBouncer, program

THEN = datetime(2025, 3, 4, 5, 6, 7, 890_000, tzinfo=UTC)
SETTINGS = {
    "client_encoding": "LATIN1",
    "timezone": "Pacific/Chatham",
    "datestyle": "SQL, DMY",
    "intervalstyle": "sql_standard",
    "standard_conforming_strings": "off",
    "bytea_output": "escape",
    "array_nulls": "off",
    "extra_float_digits": "-15",
    "transform_null_equals": "on",
    "default_transaction_isolation": "serializable",
    "default_transaction_deferrable": "on",
    "statement_timeout": "100ms",
    "lock_timeout": "100ms",
    "idle_session_timeout": "100ms",
    "idle_in_transaction_session_timeout": "100ms",
    "row_security": "off",
    "enable_indexscan": "off",
    "enable_nestloop": "off",
    "search_path": "hostile, pg_catalog",
}
HOSTILE = """
    CREATE SCHEMA hostile;
    CREATE FUNCTION hostile.clock_timestamp() RETURNS timestamptz LANGUAGE sql RETURN 'epoch'::timestamptz;
    CREATE FUNCTION hostile.pg_notify(text, text) RETURNS void LANGUAGE sql AS $$ SELECT 1 / 0 $$;
    CREATE FUNCTION hostile.cardinality(text[]) RETURNS integer LANGUAGE sql AS $$ SELECT 7 $$;
    CREATE FUNCTION hostile.unnest(bigint[]) RETURNS SETOF bigint LANGUAGE sql AS $$ SELECT 7::bigint $$;
    CREATE FUNCTION hostile.same(text, text) RETURNS boolean LANGUAGE sql AS $$ SELECT false $$;
    CREATE OPERATOR hostile.= (LEFTARG = text, RIGHTARG = text, FUNCTION = hostile.same);
    CREATE TABLE hostile.pg_locks (nothing text);
"""


async def tour(backend: PostgresBackend) -> list[Any]:
    """What comes back from most verbs, without what differs from one time to the next."""
    made = await subscribe(backend, lease="90s", max_attempts=3)
    tour: list[Any] = [made.policy]
    odd = Event("größe".encode(), "é", "quelle-ü", "art-ß", "schlüssel", THEN, {"kopf-ä": 'wert-"\\ö'})
    await backend.log.publish(CHANNEL, [odd])
    await backend.log.publish(CHANNEL, [odd._replace(id=f"ö-{n}", key=None) for n in range(3)])
    await backend.log.publish(CHANNEL, [odd._replace(id=f"ü-{n}") for n in range(250)])
    await backend.log.publish(CHANNEL, [odd._replace(id="later")], at=THEN + timedelta(days=9999))
    tour += [receipt.duplicate for receipt in await backend.log.publish(CHANNEL, [odd])]
    tour += [entry.event for entry in await read_all(backend)]
    jobs = await claim(backend, 5)
    tour += [(job.event, job.attempt) for job in jobs]
    failure = Failure("größer", "ValueError", "abc")
    tour += await backend.leases.retry([Retry(jobs[0], timedelta(seconds=90), failure)])
    tour += await backend.leases.bury([Burial(jobs[1], Reason.TERMINAL, failure)])
    tour += [await complete(backend, jobs[2]), await backend.leases.extend(jobs[3:4], MINUTE)]
    letters = (await backend.deadletters.page(DeadFilter(), None, 10)).letters
    tour += [
        (letter.record.event_id, [each | {"at": ""} for each in letter.record.errors]) for letter in letters
    ]
    await backend.advance(timedelta(minutes=10))
    tour += [await step(backend)]
    tour += [(job.event.id, job.attempt, job.abandonments) for job in await claim(backend, 5)]
    tour += [await backend.records.put("a.b", {"ä": "ö"}, 0, THEN), await backend.records.due("a.", 5)]
    cursor = await backend.cursors.attach(CHANNEL, "reader", THEN)
    lock = await backend.locks.acquire("lock", "me", MINUTE)
    tour += [cursor.position, (await backend.retention.trim(CHANNEL, THEN, 10, lock)).removed]
    tour += [(await backend.channels.consumer_stats(CHANNEL, CONSUMER)).states]
    return tour


def hostile(url: str) -> None:
    """Set all of it for the database."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(HOSTILE)
        for name, values in SETTINGS.items():
            listed = name == "search_path"
            items = [Identifier(each) for each in values.split(", ")] if listed else [Literal(values)]
            setting = (Identifier(connection.info.dbname), Identifier(name), SQL(", ").join(items))
            connection.execute(SQL("ALTER DATABASE {} SET {} = {}").format(*setting))


async def toured(url: str) -> list[Any]:
    backend = PostgresBackend(url)
    await backend.open()
    try:
        async with backend._session.connection() as connection:
            await connection.execute("SELECT pg_sleep(0.2)")
        return await tour(backend)
    finally:
        await backend.close()


async def test_settings_of_a_database_change_nothing(new_database: Callable[[], str]) -> None:
    plain, odd = new_database(), new_database()
    hostile(odd)
    assert await toured(odd) == await toured(plain)


@pytest.mark.skipif(program() is None, reason="needs Debian's package pgbouncer")
async def test_nor_do_they_through_a_pooler(new_database: Callable[[], str]) -> None:
    plain, odd = new_database(), new_database()
    hostile(odd)
    with PgBouncer(odd) as pooler:
        assert await toured(pooler.url) == await toured(plain)


async def test_a_callers_connection_may_have_another_encoding(
    backend: PostgresBackend, database: str
) -> None:
    """What it can say is stored as it is; what it cannot is refused."""
    named = [Event({}, f"é-{n}", "quelle-ü", "art-ß", "schlüssel", THEN, {"kopf-ä": "ö"}) for n in range(2)]
    async with await psycopg.AsyncConnection.connect(database, client_encoding="LATIN1") as mine:
        await backend.log.publish(CHANNEL, named, connection=mine)
        await backend.log.publish(CHANNEL, [Event({}, "ä")], connection=mine)
        with pytest.raises(InvalidInput, match="€"):
            await backend.log.publish(CHANNEL, [Event({}, "€")], connection=mine)
        await mine.commit()
    assert [entry.event for entry in await read_all(backend)][:2] == named
    assert (await read_all(backend))[2].event.id == "ä"
