"""Migrations: numbered, applied once under a lock, and the same schema however they are applied."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from holdfast.backends.postgres import PostgresBackend, migrate
from holdfast.model.errors import HoldfastError
from kit import CHANNEL, NO_OVERLAP, publish, read_all

LISTINGS = {
    "columns": """
        SELECT table_name, ordinal_position, column_name, udt_name, is_nullable, column_default,
               collation_name, is_identity FROM information_schema.columns WHERE table_schema = 'holdfast'""",
    "relations": """
        SELECT relname, relkind, reloptions FROM pg_class
        WHERE relnamespace = 'holdfast'::regnamespace AND relkind <> 'i'""",
    "indexes": "SELECT tablename, indexname, indexdef FROM pg_indexes WHERE schemaname = 'holdfast'",
    "constraints": """
        SELECT conrelid::regclass::text, conname, pg_get_constraintdef(oid) FROM pg_constraint
        WHERE connamespace = 'holdfast'::regnamespace""",
    "functions": """
        SELECT oid::regprocedure::text, pg_get_functiondef(oid) FROM pg_proc
        WHERE pronamespace = 'holdfast'::regnamespace""",
    "triggers": """
        SELECT tgrelid::regclass::text, tgname, pg_get_triggerdef(oid) FROM pg_trigger
        WHERE tgrelid IN (SELECT oid FROM pg_class WHERE relnamespace = 'holdfast'::regnamespace)
          AND NOT tgisinternal""",
    "views": "SELECT viewname, definition FROM pg_views WHERE schemaname = 'holdfast'",
    "enums": """
        SELECT t.typname, e.enumlabel, e.enumsortorder FROM pg_enum e JOIN pg_type t ON t.oid = e.enumtypid
        WHERE t.typnamespace = 'holdfast'::regnamespace""",
    "sequences": "SELECT sequencename, start_value, increment_by, cache_size FROM pg_sequences",
    "ledger": "SELECT name FROM holdfast.migrations",
    "rows": "SELECT epoch, clock_offset FROM holdfast.store",
}


def schema(url: str) -> dict[str, list[Any]]:
    """Everything in the schema, as the catalogue lists it."""
    with psycopg.connect(url) as connection:
        connection.execute("SET search_path = pg_catalog")
        return {
            name: sorted(connection.execute(query).fetchall(), key=repr) for name, query in LISTINGS.items()
        }


async def opened(url: str) -> None:
    backend = PostgresBackend(url)
    await backend.open()
    await backend.close()


def test_they_are_numbered_without_gaps() -> None:
    names = list(migrate.migrations())
    assert [name[:5] for name in names] == [f"{n:04}_" for n in range(1, len(names) + 1)]
    assert all(re.fullmatch(r"\d{4}_[a-z_]+\.sql", name) for name in names)


async def test_opening_again_changes_nothing(blank: str) -> None:
    await opened(blank)
    before = schema(blank)
    assert before["ledger"] == [(name,) for name in migrate.migrations()]
    await opened(blank)
    assert schema(blank) == before


async def test_the_script_gives_the_same_schema_as_opening(
    blank: str, new_database: Callable[[], str]
) -> None:
    with psycopg.connect(blank, autocommit=True) as connection:
        connection.execute(migrate.script())  # type: ignore[arg-type]
        connection.execute(NO_OVERLAP)  # as the kit does with every other database
    by_script, by_opening = schema(blank), schema(new_database())
    for listing in LISTINGS:
        assert by_script[listing] == by_opening[listing], listing
    assert all(len(rows) > 0 for rows in by_script.values()), "each listing has something to compare"


async def test_a_store_made_by_the_script_works(blank: str) -> None:
    with psycopg.connect(blank, autocommit=True) as connection:
        connection.execute(migrate.script())  # type: ignore[arg-type]
    backend = PostgresBackend(blank)
    await backend.open()
    await publish(backend, "a")
    assert [entry.channel for entry in await read_all(backend)] == [CHANNEL]
    await backend.close()


@pytest.mark.concurrency
async def test_many_that_open_an_empty_database_at_once_migrate_it_once(blank: str) -> None:
    await asyncio.gather(*(opened(blank) for _ in range(6)))
    assert schema(blank)["ledger"] == [(name,) for name in migrate.migrations()]


async def test_a_migration_from_the_future_is_refused_by_name(database: str) -> None:
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("INSERT INTO holdfast.migrations (name) VALUES ('9999_tomorrow.sql')")
    before = schema(database)
    backend = PostgresBackend(database)
    try:
        with pytest.raises(HoldfastError, match=r"9999_tomorrow\.sql"):
            await backend.open()
    finally:
        await backend.close()
    assert schema(database) == before


async def test_a_migration_that_fails_leaves_nothing(blank: str, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = migrate.migrations()
    monkeypatch.setattr(migrate, "migrations", lambda: whole | {"9999_broken.sql": "SELECT 1 / 0"})
    backend = PostgresBackend(blank)
    try:
        with pytest.raises((HoldfastError, psycopg.Error), match="division by zero"):
            await backend.open()
    finally:
        await backend.close()
    with psycopg.connect(blank) as connection:
        assert connection.execute("SELECT to_regnamespace('holdfast')").fetchone() == (None,)
    monkeypatch.undo()
    await opened(blank)
    assert len(schema(blank)["ledger"]) == len(whole)
