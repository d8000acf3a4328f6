"""The engine: the process in which one query runs, with DuckDB on the warehouse, whatever that is.

What the SQL can reach is decided before it is read: the warehouse, to read it. Files, extensions, the network
and the settings are locked, and a statement that does anything but read is refused.
"""

from __future__ import annotations

import fcntl
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import orjson

from holdfast.model.errors import HoldfastError, InvalidInput, NotFound, Unavailable
from holdfast.model.sql_files import load_queries
from holdfast.pipeline.query.process import GRACE, PATIENCE, QueryLimits, too_large, too_slow
from holdfast.pipeline.warehouse.contract import location_of
from holdfast.pipeline.warehouse.damage import advice, is_unread
from holdfast.pipeline.warehouse.schemas import history, latest, view, view_name
from holdfast.pipeline.warehouse.tables import FIXED

QUERIES = load_queries("holdfast.pipeline.query", "query.sql")
_PAUSE, _GAP = 0.02, 0.1
"""How often to ask for the file, and how long it is left alone before each query, in seconds: an ingest that
waits for it asks as often, and gets it, however many people ask at once."""
_ROOM = 1 << 30
"""Memory for Python, Arrow and the result, besides DuckDB's."""
_CHUNK = 100
_LONGEST = 1_000
_READING = ("SELECT", "EXPLAIN", "MULTI")
"""Statements that read; a PIVOT is called MULTI."""


def run(url: str, sql: str, limits: QueryLimits, *, audit: bool) -> bytes:
    """See `run_query`."""
    with _translated(url, limits), opened(url) as connection:
        if not audit and connection.execute(QUERIES["has_audit"]).fetchall():
            raise InvalidInput("this warehouse has the audit, which only an admin may read: use such a token")
        lock(connection, limits.memory)
        check(connection, sql)
        _end_after(limits.seconds + GRACE)
        timer = threading.Timer(limits.seconds, connection.interrupt)
        timer.daemon = True
        timer.start()
        began = time.monotonic()
        return _answer(connection.execute(sql), limits, began)


@contextmanager
def opened(url: str) -> Iterator[duckdb.DuckDBPyConnection]:
    """A connection that has the warehouse open, with `all_events` over all of its tables of events.
    `NotFound` where there is none, `Unavailable` where others have it."""
    kind, path = location_of(url)
    with _duckdb(Path(path).expanduser()) if kind == "duckdb" else _delta(path) as connection:
        connection.execute("SET TimeZone = 'UTC'")
        found = connection.execute(QUERIES["tables"], {"fixed": list(FIXED)}).fetchall()
        columns = ", ".join(f'"{name}"' for name in FIXED)
        parts = [f'SELECT {columns} FROM "{name}"' for (name,) in found]  # noqa: S608 - names of our own
        if parts:
            connection.execute(QUERIES["all_events"].format(parts=" UNION ALL ".join(parts)))
        yield connection


@contextmanager
def _duckdb(file: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    """Queries on one file take turns. Whoever has it keeps writers away until the query ends."""
    if not file.exists():
        raise NotFound(f"there is no warehouse {file} on this machine")
    until = time.monotonic() + PATIENCE
    # Its lock is another one than DuckDB's own, which would end if this were closed before the connection is.
    descriptor = os.open(file, os.O_RDONLY)
    try:
        while not _has_turn(descriptor):
            _wait(until, "other queries")
        time.sleep(_GAP)
        with _connected(file, until) as connection:
            yield connection
    finally:
        os.close(descriptor)


def _connected(file: Path, until: float) -> duckdb.DuckDBPyConnection:
    while True:
        try:
            return duckdb.connect(str(file), read_only=True)
        except duckdb.IOException as error:
            if "Could not set lock" not in str(error):
                raise
        _wait(until, "another process, such as the ingest,")


def _has_turn(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _wait(until: float, who: str) -> None:
    if time.monotonic() > until:
        raise Unavailable(f"{who} had the warehouse for {PATIENCE:g} s; ask again")
    time.sleep(_PAUSE)


@contextmanager
def _delta(root: str) -> Iterator[duckdb.DuckDBPyConnection]:
    """The latest version of each table. Of their files only what a query needs is read."""
    from holdfast.pipeline.warehouse import delta_metadata
    from holdfast.pipeline.warehouse.delta_files import DeltaFiles, live_files
    from holdfast.pipeline.warehouse.delta_metadata import FAILED, FAILED_SCHEMA

    files = DeltaFiles(root)
    names = files.names()
    if not names:
        raise NotFound(f"there is no warehouse in {root}: it holds no Delta table")
    with duckdb.connect() as connection:
        connection.register(FAILED, FAILED_SCHEMA.empty_table())
        connection.register(delta_metadata.SCHEMAS, delta_metadata.SCHEMAS_SCHEMA.empty_table())
        columns: dict[str, list[str]] = {}
        for name in names:
            found = files.find(name)
            if found is not None:
                dataset = files.dataset(name, found, live_files(found))
                connection.register(name, dataset)
                columns[name] = dataset.schema.names
        schemas = delta_metadata.read_schemas(files)
        for each in latest(schemas).values():
            if each.table in columns:
                name, fields = view_name(each.channel, names), history(schemas, each.channel)
                stored = columns[each.table]
                connection.execute(view(name, each.table, each.channel, fields, stored, temporary=True))
        yield connection


def lock(connection: duckdb.DuckDBPyConnection, memory: int) -> None:
    """From here on SQL reaches nothing but what the connection has open."""
    connection.execute(f"SET memory_limit = '{memory}B'")
    connection.execute(QUERIES["lock"])


def check(connection: duckdb.DuckDBPyConnection, sql: str) -> None:
    """`InvalidInput` unless it is one statement that reads."""
    found = [each.type.name for each in connection.extract_statements(sql)]
    if len(found) != 1:
        raise InvalidInput(f"one statement is wanted, not {len(found)}; write SELECT …")
    if found[0] not in _READING:
        raise InvalidInput(f"{found[0]} is not allowed: the warehouse is only read; write SELECT …")


def _answer(result: duckdb.DuckDBPyConnection, limits: QueryLimits, began: float) -> bytes:
    size, rows, truncated = 0, list[bytes](), False
    columns = [{"name": each[0], "type": str(each[1])} for each in result.description or ()]
    while not truncated and (some := result.fetchmany(_CHUNK)):
        for row in some:
            text = orjson.dumps([_plain(value) for value in row])
            size += len(text) + 1
            if len(rows) == limits.rows or size > limits.bytes:
                truncated = True
                break
            rows.append(text)
    head = {"columns": columns, "truncated": truncated, "seconds": round(time.monotonic() - began, 3)}
    return orjson.dumps(head | {"rows": orjson.Fragment(b"[%b]" % b",".join(rows))})


def _plain(value: Any) -> Any:
    """A value as JSON has it: numbers of any size as they are, bytes in hexadecimal, the rest as text."""
    match value:
        case None | str() | bool() | float():
            return value
        case int() | Decimal():
            return orjson.Fragment(str(value))
        case list() | tuple():
            return [_plain(each) for each in value]
        case dict():
            return {str(name): _plain(each) for name, each in value.items()}
        case bytes():
            return value.hex()
    return value.isoformat().replace("+00:00", "Z") if hasattr(value, "isoformat") else str(value)


@contextmanager
def _translated(url: str, limits: QueryLimits) -> Iterator[None]:
    """The errors of others as ours, in one line."""
    try:
        yield
    except duckdb.InterruptException:
        raise too_slow(limits) from None
    except (duckdb.OutOfMemoryException, MemoryError):
        raise too_large(limits) from None
    except (duckdb.OperationalError, OSError) as error:
        raise Unavailable(f"{url}: {_brief(error)}{advice(error)}") from None
    except duckdb.Error as error:
        if is_unread(error) or advice(error):
            raise Unavailable(f"{url}: {_brief(error)}{advice(error)}") from None
        raise InvalidInput(_brief(error)) from None


def _brief(error: Exception) -> str:
    """Without the lines that draw where it is."""
    return " ".join(str(error).partition("\nLINE ")[0].split())[:_LONGEST]


def _end_after(seconds: float) -> None:
    """Have this process killed then, whatever it does: nobody may be left to do it."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, seconds)


def main() -> None:
    """Run what the standard input asks for; the first byte of the output tells whether it could be done."""
    request = orjson.loads(sys.stdin.buffer.read())
    limits = QueryLimits(**request["limits"])
    _end_after(PATIENCE + limits.seconds + GRACE)
    for kind, most in (
        (resource.RLIMIT_DATA, limits.memory + _ROOM),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(kind, (most, most))
    try:
        output = b"=" + run(request["url"], request["sql"], limits, audit=request["audit"])
    except HoldfastError as error:
        output = f"!{type(error).__name__} {error}".encode("utf-8", "replace")
    except Exception as error:  # of Arrow's or deltalake's, such as a file that was removed meanwhile
        output = f"!Unavailable {request['url']}: {_brief(error)}".encode("utf-8", "replace")
    sys.stdout.buffer.write(output)
    sys.stdout.flush()
    os._exit(0)  # threads of Arrow's may still be at it


if __name__ == "__main__":
    main()
