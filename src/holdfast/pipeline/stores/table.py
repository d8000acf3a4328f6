"""A PostgreSQL table as an object store: objects by name, and the lines of `.jsonl.gz` objects as rows.

An object and its rows are one transaction. Each call connects for itself: objects are large and rare enough.
The first put makes the tables: to look at some that are not there changes nothing.
"""

from __future__ import annotations

import contextlib
import gzip
import io
from collections.abc import Iterator, Sequence
from importlib.resources import files
from typing import Any, BinaryIO
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import orjson
import psycopg
from psycopg.errors import UndefinedTable
from psycopg.sql import SQL, Composed, Identifier

from holdfast.model.errors import InvalidInput, NotFound, ObjectConflict, Unavailable
from holdfast.pipeline.stores.store import Entry, Tagged, check_key, content_tag

_LINES = ".jsonl.gz"
_COLUMNS = ("message_id", "channel", "position", "timestamp", "source", "type", "key")


class TableStore:
    """`?table=name` in the URL names the table of lines; the objects are in `name_objects`."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        options = dict(parse_qsl(parts.query))
        table = options.pop("table", "archive")
        self._connect_to = urlunsplit(parts._replace(query=urlencode(options)))
        self.url = f"postgresql://{parts.hostname or 'localhost'}{parts.path}?table={table}"
        schema, _, name = table.rpartition(".")
        if not name:
            raise InvalidInput(f"table={table!r} names no table; write ?table=archive")
        path = [schema] if schema else []
        self._names = {
            "lines": Identifier(*path, name),
            "objects": Identifier(*path, f"{name}_objects"),
            "by_message": Identifier(f"{name}_message_id"),
            "by_time": Identifier(f"{name}_channel_timestamp"),
        }
        self._made = False

    def put(self, name: str, data: bytes) -> bool:
        self._make()
        insert = "INSERT INTO {objects} (name, data) VALUES (%s, %s) ON CONFLICT (name) DO NOTHING"
        with self._connection() as connection:
            if connection.execute(self._sql(insert), (check_key(name), data)).rowcount:
                if name.endswith(_LINES):
                    self._insert(connection, name, data)
                return True
        if self.get(name) != data:
            raise ObjectConflict(f"{self.url} holds {name} with other content; it was left as it is")
        return False

    def swap(self, name: str, tag: str, data: bytes) -> bool:
        """Objects of lines are never swapped, so no rows follow."""
        update = "UPDATE {objects} SET data = %s WHERE name = %s AND encode(sha256(data), 'hex') IN (%s, %s)"
        values = (data, check_key(name), tag, content_tag(data))
        with contextlib.suppress(UndefinedTable), self._connection() as connection:
            return connection.execute(self._sql(update), values).rowcount == 1
        return False

    def get(self, name: str) -> bytes:
        for row in self._rows("SELECT data FROM {objects} WHERE name = %s", check_key(name)):
            return bytes(row[0])
        raise NotFound(f"there is no object {name!r} in {self.url}")

    def parts(self, name: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """The server gives an object whole."""
        data = self.get(name)
        return [data[start:end] for start, end in ranges]

    def reader(self, name: str) -> BinaryIO:
        """The server gives an object whole."""
        return io.BytesIO(self.get(name))

    def tagged(self, name: str) -> Tagged:
        data = self.get(name)
        return Tagged(data, content_tag(data))

    def size(self, name: str) -> int | None:
        rows = self._rows("SELECT length(data) FROM {objects} WHERE name = %s", check_key(name))
        return int(rows[0][0]) if rows else None

    def list(self, prefix: str = "") -> Iterator[Entry]:
        folder = f"{prefix.rstrip('/')}/" if prefix else ""
        query = (
            'SELECT name, length(data) FROM {objects} WHERE starts_with(name, %s) ORDER BY name COLLATE "C"'
        )
        for name, size in self._rows(query, folder):
            yield Entry(name, size)

    def delete(self, name: str) -> None:
        with contextlib.suppress(UndefinedTable), self._connection() as connection:
            connection.execute(self._sql("DELETE FROM {objects} WHERE name = %s"), (check_key(name),))

    def _make(self) -> None:
        if not self._made:
            with self._connection() as connection:
                connection.execute("SELECT pg_advisory_xact_lock(hashtext('holdfast archive tables'))")
                connection.execute(self._sql(_read("tables.sql")))
        self._made = True

    def _insert(self, connection: psycopg.Connection, name: str, data: bytes) -> None:
        texts = gzip.decompress(data).splitlines()
        documents = [orjson.loads(text) for text in texts]
        columns = [[_text(document[column]) for document in documents] for column in _COLUMNS]
        columns.append([text.decode() for text in texts])
        connection.execute(self._sql(_read("lines.sql")), (name, *columns))

    def _rows(self, query: str, name: str) -> Sequence[tuple[Any, ...]]:
        with contextlib.suppress(UndefinedTable), self._connection() as connection:
            return connection.execute(self._sql(query), (name,)).fetchall()
        return []

    def _sql(self, text: str) -> Composed:
        return SQL(text).format(**self._names)

    @contextlib.contextmanager
    def _connection(self) -> Iterator[psycopg.Connection]:
        """One transaction of its own; the server's errors as ours."""
        try:
            # Nothing is prepared: behind a pooler it would be left to others.
            with psycopg.connect(self._connect_to, connect_timeout=10, prepare_threshold=None) as connection:
                yield connection
        except (psycopg.OperationalError, psycopg.InterfaceError) as error:
            raise Unavailable(f"{self.url} did not answer: {str(error).partition(chr(10))[0]}") from error


def _read(file: str) -> str:
    return files(__package__).joinpath(file).read_text()


def _text(value: str | None) -> str | None:
    """PostgreSQL's text holds everything but NUL."""
    return value.replace("\0", "\N{REPLACEMENT CHARACTER}") if value else value
