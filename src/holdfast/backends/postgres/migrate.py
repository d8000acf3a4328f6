"""Migrations: numbered .sql files, applied in order under a lock."""

from __future__ import annotations

from importlib.resources import files
from typing import LiteralString

from holdfast.backends.postgres.pool import Connection
from holdfast.model.errors import HoldfastError

_LOCK = 1215655475
_LEDGER: LiteralString = """
    CREATE SCHEMA IF NOT EXISTS holdfast;
    CREATE TABLE IF NOT EXISTS holdfast.migrations (
        name text PRIMARY KEY, applied_at timestamptz NOT NULL DEFAULT now())
"""


def migrations() -> dict[str, LiteralString]:
    """All migrations by name, in order."""
    folder = files(__package__).joinpath("migrations")
    ordered = sorted((f for f in folder.iterdir() if f.name.endswith(".sql")), key=lambda f: f.name)
    return {file.name: file.read_text() for file in ordered}


def script() -> str:
    """Everything as one script, for people who apply migrations themselves."""
    parts = [f"BEGIN;\nSELECT pg_advisory_xact_lock({_LOCK});\n{_LEDGER.strip()};\n"]
    for name, text in migrations().items():
        parts.append(f"-- {name}\n{text}\nINSERT INTO holdfast.migrations (name) VALUES ('{name}');\n")
    return "\n".join([*parts, "COMMIT;\n"])


async def apply(connection: Connection) -> list[str]:
    """Apply what is missing, in one transaction; answers the names of what was applied."""
    known = migrations()
    done = await _applied(connection)
    if done == set(known):
        return []
    async with connection.transaction():
        await connection.execute("SELECT pg_advisory_xact_lock(%s)", (_LOCK,))
        await connection.execute(_LEDGER)
        done = await _applied(connection)
        if done - set(known):
            raise HoldfastError(
                f"the store has migrations that this version does not know: {sorted(done - set(known))}; "
                "upgrade holdfast, or begin with an empty store where it was made by an unreleased version"
            )
        missing = [name for name in known if name not in done]
        for name in missing:
            await connection.execute(known[name], prepare=False)
            await connection.execute("INSERT INTO holdfast.migrations (name) VALUES (%s)", (name,))
    return missing


async def _applied(connection: Connection) -> set[str]:
    cursor = await connection.execute("SELECT to_regclass('holdfast.migrations') IS NOT NULL")
    row = await cursor.fetchone()
    if row is None or not row[0]:
        return set()
    cursor = await connection.execute("SELECT name FROM holdfast.migrations")
    return {name for (name,) in await cursor.fetchall()}
