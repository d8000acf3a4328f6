"""How PostgreSQL carries out our statements: plans and buffers, with the settings that the pool uses."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import sql

from holdfast.backends.postgres.queries import QUERIES
from holdfast.backends.postgres.session import Connection, Session
from kit import until

BIG = {"jobs", "log", "keys", "history", "frontiers", "ahead", "dead_letters", "trimmed", "released"}
_PARAMETER = re.compile(r"%\((\w+)\)[sbt]")


@dataclass(frozen=True)
class Plan:
    """One statement's plan, and what it touched if it was run."""

    text: str
    root: dict[str, Any]

    @property
    def nodes(self) -> list[dict[str, Any]]:
        return list(_walk(self.root))

    @property
    def scanned(self) -> set[str]:
        """The big tables that are read from end to end."""
        return {str(n.get("Relation Name")) for n in self.nodes if n["Node Type"] == "Seq Scan"} & BIG

    @property
    def indexes(self) -> set[str]:
        return {n["Index Name"] for n in self.nodes if "Index Name" in n}

    @property
    def looks(self) -> int:
        """How many rows of a big table one step looked at, at the most."""
        return max((round(_looks(node)) for node in self.nodes), default=0)

    @property
    def buffers(self) -> int:
        """Pages that were looked at, wherever they came from."""
        return int(self.root.get("Shared Hit Blocks", 0) + self.root.get("Shared Read Blocks", 0))


def _looks(node: dict[str, Any]) -> float:
    if node.get("Relation Name") not in BIG or "Actual Rows" not in node:
        return 0.0
    removed = node.get("Rows Removed by Filter", 0) + node.get("Rows Removed by Index Recheck", 0)
    return float((node["Actual Rows"] + removed) * node["Actual Loops"])


def _walk(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield node
    for child in node.get("Plans", []):
        yield from _walk(child)


@asynccontextmanager
async def pooled(url: str) -> AsyncIterator[Connection]:
    """A connection as the pool makes it, in a transaction that is rolled back."""
    session = Session(url, 1)
    await session.open()
    try:
        async with session.connection() as connection, connection.transaction(force_rollback=True):
            yield connection
    finally:
        await session.close()


async def explain(connection: Connection, name: str, *, run: bool = False, **parameters: Any) -> Plan:
    """The plan of a named query, prepared as the pool prepares it."""
    names: list[str] = []

    def numbered(match: re.Match[str]) -> str:
        if match[1] not in names:
            names.append(match[1])
        return f"${names.index(match[1]) + 1}"

    text = _PARAMETER.sub(numbered, QUERIES[name])
    await connection.execute(f"PREPARE explained AS {text}")  # type: ignore[arg-type]
    options = "ANALYZE, BUFFERS, TIMING OFF, FORMAT json" if run else "FORMAT json"
    values = sql.SQL(", ").join(sql.Literal(parameters[each]) for each in names)
    called = sql.SQL("explained ({})").format(values) if names else sql.SQL("explained")
    call = sql.SQL("EXPLAIN ({}) EXECUTE {}").format(sql.SQL(options), called)
    cursor = await connection.execute(call)
    row = await cursor.fetchone()
    await connection.execute("DEALLOCATE explained")
    assert row is not None
    return Plan(name, row[0][0]["Plan"])


@asynccontextmanager
async def watched(connection: Connection) -> AsyncIterator[list[Plan]]:
    """Every statement that runs inside, also within functions and triggers, with what it touched."""
    plans: list[Plan] = []

    def on_notice(notice: psycopg.errors.Diagnostic) -> None:
        _, found, text = (notice.message_primary or "").partition("plan:\n")
        if found:
            described = json.loads(text)
            plans.append(Plan(described["Query Text"], described["Plan"]))

    await connection.execute(
        """
        LOAD 'auto_explain'; SET client_min_messages = log; SET auto_explain.log_min_duration = 0;
        SET auto_explain.log_nested_statements = on; SET auto_explain.log_analyze = on;
        SET auto_explain.log_buffers = on; SET auto_explain.log_timing = off;
        SET auto_explain.log_format = json
        """,
        prepare=False,
    )
    connection.add_notice_handler(on_notice)
    try:
        yield plans
        # A statement is over, and says how it went, when the next one begins.
        await connection.execute("SELECT", prepare=False)
    finally:
        connection.remove_notice_handler(on_notice)


async def waiting(connection: psycopg.Connection[tuple[Any, ...]]) -> None:
    """Until somebody in this database waits for a lock."""

    async def is_so() -> bool:
        row = connection.execute(
            """SELECT count(*) FROM pg_stat_activity
               WHERE wait_event_type = 'Lock' AND datname = current_database()"""
        ).fetchone()
        return row is not None and row[0] > 0

    await until(is_so)
