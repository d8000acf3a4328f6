"""The spool: a folder in which a publisher keeps events durably while no store takes them.

It holds one SQLite database, `events.sqlite`, whose write-ahead log (WAL) is synced at every commit: an event
is durable before its publish is acknowledged. Every row has a checksum. A damaged row is set aside in the
file `damaged` and named in the log. A damaged database is kept under another name, and every row of it that
can still be read is carried over. One process at a time has a spool.
"""

from __future__ import annotations

import base64
import errno
import fcntl
import logging
import os
import re
import sqlite3
import threading
import time
import zlib
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import orjson

from holdfast.model.errors import InvalidInput, Overloaded, Unavailable
from holdfast.model.event import Event
from holdfast.model.sql_files import load_queries

log = logging.getLogger(__name__)

MAX_BYTES = 256_000_000
_SYNCHRONOUS = "FULL"
_SQL = load_queries("holdfast.bus", "spool.sql")
_OLD_SEGMENT = re.compile(r"[0-9]{16}\.log", re.ASCII)
_ALL = -1
# Our statements are right and the file can be written: so a general error and `READONLY` are damage, too.
_DAMAGE = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR, sqlite3.SQLITE_READONLY)
_WAL_HEADER, _FRAME_HEADER = 32, 24

Row = tuple[int, Any, Any, Any, Any]
"""Number, head, data, checksum and time of the append, as they were read: damage may change the types."""


@dataclass(frozen=True, slots=True)
class Spooled:
    """An event on its way, with everything that its publish was given."""

    channel: str
    event: Event
    at: datetime | None
    priority: int


class Spool:
    """The events of one folder, first in, first out."""

    def __init__(self, path: str | Path, max_bytes: int = MAX_BYTES) -> None:
        self._path, self._max_bytes = Path(path), max_bytes
        self._file = self._path / "events.sqlite"
        self._lock = -1
        self._db: sqlite3.Connection | None = None
        self._access = threading.Lock()  # a cancelled task's thread may still be at work
        self._count = self._first = self._next = self._bytes = 0
        self._ages: deque[tuple[int, float]] = deque()
        self.refused: Counter[str] = Counter(full=0, store=0, damaged=0)
        """Events that were not kept or not sent, by what refused them: the bound, a store, or a checksum."""

    def open(self) -> None:
        """Take the folder, and find what an earlier process left in it.

        Raises `InvalidInput` where another process has it, or an earlier version wrote it, and `Unavailable`
        where it cannot be used.
        """
        with self._translated():
            _make(self._path)
            self._take_lock()
            try:
                self._refuse_old_format()
                self._db = self._load()
                self._find(self._db)
            except BaseException:
                self.close()
                raise

    def close(self) -> None:
        """Let another process have the folder."""
        with self._access:
            if self._db is not None:
                self._db.close()
            if self._lock >= 0:
                os.close(self._lock)
            self._db, self._lock = None, -1

    def __len__(self) -> int:
        return self._count

    @property
    def size(self) -> int:
        """How many bytes the events take that wait."""
        return self._bytes

    @property
    def oldest_age(self) -> float:
        """For how many seconds the oldest event has been waiting, to the second; 0.0: there is none."""
        first, ages = self._first, tuple(self._ages)  # at once: another thread may be at work
        if not len(self) or not ages:
            return 0.0
        since = max((at for number, at in ages if number <= first), default=ages[0][1])
        return max(0.0, time.monotonic() - since)

    def append(self, entries: Sequence[Spooled]) -> None:
        """Keep events, all or none; they are durable when this returns.

        Raises `Overloaded` where the bound is reached, and `Unavailable` where the disk refuses them.
        """
        with self._access, self._translated():
            if self._db is None:
                raise Unavailable(f"the spool {self._path} is closed; nothing was kept")
            rows = [_row(number, entry) for number, entry in enumerate(entries, self._next)]
            size = sum(len(head) + len(data) for _, head, data, _, _ in rows)
            if self._bytes + size > self._max_bytes:
                self.refused["full"] += len(entries)
                raise Overloaded(
                    f"the spool {self._path} holds {self._bytes} of {self._max_bytes} bytes; "
                    "publish again once a store is back and has taken them"
                )
            _insert(self._db, rows)
            self._note_age(self._next, time.monotonic())
            self._next += len(rows)
            self._count += len(rows)
            self._bytes += size

    def peek(self, limit: int) -> list[Spooled]:
        """Return the oldest events, up to `limit`. Damaged ones are set aside, and are not among them."""
        with self._access:
            found: list[Spooled] = []
            while self._db is not None and (
                rows := self._db.execute(_SQL["oldest_first"], (limit,)).fetchall()
            ):
                for row in rows:
                    try:
                        found.append(_parsed(row))
                    except (ValueError, TypeError) as error:
                        if not found:
                            self._set_damaged_aside(row, error)
                            self._remove(self._db, 1)
                        break
                if found:
                    break
            return found

    def advance(self, count: int) -> None:
        """Remove the oldest `count` events: a store has them. A closed spool sends them again."""
        with self._access:
            if self._db is not None:
                self._remove(self._db, count)

    def set_aside(self, entry: Spooled, error: Exception) -> None:
        """Keep an event that no store will ever take in the file `refused`, with the reason."""
        self.refused["store"] += 1
        data = base64.b64encode(entry.event.data).decode()
        self._append_line("refused", {"error": str(error), **_head(entry), "data": data})

    def _set_damaged_aside(self, row: Row, error: Exception) -> None:
        log.error("event %s of the spool %s is damaged: %s", row[0], self._path, error)
        self.refused["damaged"] += 1
        head, data = (
            base64.b64encode(each).decode() if isinstance(each, bytes) else each for each in row[1:3]
        )
        self._append_line("damaged", {"number": row[0], "error": str(error), "head": head, "data": data})

    def _append_line(self, name: str, line: dict[str, Any]) -> None:
        with open(self._path / name, "ab", opener=_private) as file:
            file.write(orjson.dumps(line) + b"\n")
            file.flush()
            os.fsync(file.fileno())
        _sync(self._path)

    def _remove(self, db: sqlite3.Connection, count: int) -> None:
        sizes = db.execute(_SQL["sizes"], (count,)).fetchall()
        if not sizes:
            return
        db.execute(_SQL["remove"], (sizes[-1][0],))
        self._first = sizes[-1][0] + 1
        self._count -= len(sizes)
        self._bytes -= sum(size for _, size in sizes)
        while len(self._ages) > 1 and self._ages[1][0] <= self._first:
            self._ages.popleft()
        if not self._count:
            self._ages.clear()
            with suppress(sqlite3.Error):  # it only gives room on the disk back
                db.executescript("PRAGMA incremental_vacuum")  # `execute` would free one page only
                db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    def _note_age(self, number: int, since: float) -> None:
        """From this event on they have waited since then: one note a second is enough."""
        if not self._ages or since - self._ages[-1][1] >= 1:
            self._ages.append((number, since))

    # opening

    def _take_lock(self) -> None:
        self._lock = os.open(self._path / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._lock)
            self._lock = -1
            raise InvalidInput(
                f"the spool {self._path} is in use by another process; give each publisher its own folder"
            ) from None

    def _refuse_old_format(self) -> None:
        left = [each.name for each in self._path.iterdir() if _OLD_SEGMENT.fullmatch(each.name)]
        if any((self._path / name).stat().st_size for name in left):
            raise InvalidInput(
                f"the spool {self._path} holds events in the format of an earlier version ({min(left)}); "
                "let that version send them, or move the files away"
            )

    def _load(self) -> sqlite3.Connection:
        """Open the database, or make it. Where it is damaged, make another one of what can be read."""
        if not self._file.exists():
            self._replace([])
        wal = Path(f"{self._file}-wal")
        left = wal.read_bytes() if wal.exists() else b""
        db = _connect(self._file)
        try:
            if not self._file.stat().st_size:
                raise sqlite3.DatabaseError("it is empty")
            _prepare(db)
            if _has_lost_frames(left, db):
                self._keep_damaged(wal.name, left)
                left = b""
            _check(db)
        except (sqlite3.Error, UnicodeDecodeError) as error:  # an error may quote damaged text
            if getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF not in _DAMAGE:
                db.close()
                raise
            rows = _readable(db)
            db.close()
            log.error("%s is damaged (%s): %s events of it can be read", self._file, error, len(rows))
            self._keep_damaged(self._file.name, self._file.read_bytes())
            if left:
                self._keep_damaged(wal.name, left)
            wal.unlink(missing_ok=True)
            self._replace(rows)
            db = _connect(self._file)
            _prepare(db)
        return db

    def _replace(self, rows: Iterable[Row]) -> None:
        """Make a database of these rows, and put it in place at once: it is never there half made."""
        fresh = self._file.with_suffix(".new")
        fresh.unlink(missing_ok=True)
        with closing(_connect(fresh)) as db:
            db.execute("PRAGMA auto_vacuum = INCREMENTAL")
            _prepare(db)
            db.execute(_SQL["schema"])
            _insert(db, rows)
        fresh.rename(self._file)
        _sync(self._path)

    def _keep_damaged(self, name: str, content: bytes) -> None:
        self.refused["damaged"] += 1
        number = 1
        while (kept := self._path / f"{name}.damaged-{number}").exists():
            number += 1
        with open(kept, "wb", opener=_private) as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        _sync(self._path)
        log.error("the spool %s was damaged: events may be missing; see %s", self._path, kept)

    def _find(self, db: sqlite3.Connection) -> None:
        self._count, self._bytes, first, last = db.execute(_SQL["totals"]).fetchone()
        self._first, self._next = (0, 0) if first is None else (first, last + 1)
        now, monotonic = time.time(), time.monotonic()
        for number, appended_at in db.execute(_SQL["ages"]).fetchall():
            if isinstance(appended_at, float):
                self._note_age(number, monotonic - (now - appended_at))

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except (OSError, sqlite3.Error) as error:
            full = getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_FULL
            reason = os.strerror(errno.ENOSPC) if full else getattr(error, "strerror", None) or error
            raise Unavailable(f"the spool {self._path} cannot be used: {reason}; nothing was kept") from error


def _connect(file: Path) -> sqlite3.Connection:
    os.close(os.open(file, os.O_RDWR | os.O_CREAT, 0o600))  # SQLite gives its other files the same mode
    db = sqlite3.connect(file, timeout=0, isolation_level=None, check_same_thread=False)
    db.text_factory = bytes  # damaged text need not be UTF-8
    return db


def _prepare(db: sqlite3.Connection) -> None:
    db.execute("PRAGMA locking_mode = EXCLUSIVE")
    db.execute("PRAGMA journal_mode = WAL")
    db.execute(f"PRAGMA synchronous = {_SYNCHRONOUS}")


def _check(db: sqlite3.Connection) -> None:
    """Raise `sqlite3.DatabaseError` where the structure of the database is damaged."""
    schema = [sql for (sql,) in db.execute(_SQL["found_schema"]).fetchall()]
    if schema != [_SQL["schema"].encode()]:
        raise sqlite3.DatabaseError("it has another schema")
    db.execute(_SQL["remove"], (-1,))  # removes nothing, and fails where nothing can be written
    [problem] = db.execute("PRAGMA quick_check(1)").fetchone()
    if problem != b"ok":
        raise sqlite3.DatabaseError(problem.decode(errors="replace"))


def _has_lost_frames(wal: bytes, db: sqlite3.Connection) -> bool:
    """Return whether the WAL that a crash left has commits after the last frame that SQLite accepts.

    SQLite takes the first wrong checksum for the end of the log, and says nothing. That is right for a write
    that was cut short, and loses what was committed where a disk has changed a frame.
    """
    _, accepted, _ = db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
    [page] = db.execute("PRAGMA page_size").fetchone()
    size = _FRAME_HEADER + page
    frames = [wal[at : at + _FRAME_HEADER] for at in range(_WAL_HEADER, len(wal) - size + 1, size)]
    if not frames:
        return False
    # Frames of an earlier turn of the log have other salts. Any one of these may be what was damaged.
    salts = {wal[16:20], wal[20:24], frames[0][8:12], frames[0][12:16]}
    return any(
        frame[4:8] != bytes(4) and {frame[8:12], frame[12:16]} & salts  # the end of a transaction
        for frame in frames[max(accepted, 0) :]
    )


def _readable(db: sqlite3.Connection) -> list[Row]:
    """Return the rows of a damaged database that can be reached from one end or the other, in order."""
    found: dict[int, Row] = {}
    for query in ("oldest_first", "newest_first"):
        with suppress(sqlite3.Error):
            for row in db.execute(_SQL[query], (_ALL,)):
                if row[0] in found:
                    break
                found[row[0]] = row
    return [found[number] for number in sorted(found)]


def _insert(db: sqlite3.Connection, rows: Iterable[Row]) -> None:
    db.execute("BEGIN")
    try:
        db.executemany(_SQL["append"], rows)
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise


def _head(entry: Spooled) -> dict[str, Any]:
    _, name, source, kind, key, when, headers = entry.event
    return {
        "channel": entry.channel,
        "at": entry.at,
        "priority": entry.priority,
        "id": name,
        "source": source,
        "type": kind,
        "key": key,
        "time": when,
        "headers": dict(headers),
    }


def _row(number: int, entry: Spooled) -> Row:
    head = orjson.dumps(_head(entry))
    return number, head, entry.event.data, _checksum(number, head, entry.event.data), time.time()


def _checksum(number: int, head: bytes, data: bytes) -> int:
    return zlib.crc32(data, zlib.crc32(head, zlib.crc32(b"%d" % number)))


def _parsed(row: Row) -> Spooled:
    """Return what a row holds. Raises `ValueError` or `TypeError` where it is not what was written."""
    number, head, data, checksum, _ = row
    if checksum != _checksum(number, head, data):
        raise ValueError("its checksum is wrong")
    fields = orjson.loads(head)
    event = Event(
        data,
        fields["id"],
        fields["source"],
        fields["type"],
        fields["key"],
        _time(fields["time"]),
        fields["headers"],
    )
    return Spooled(fields["channel"], event, _time(fields["at"]), fields["priority"])


def _time(value: str | None) -> datetime | None:
    return None if value is None else datetime.fromisoformat(value)


def _private(path: str, flags: int) -> int:
    """Open a file that, if it is new, only its owner can read: events are in it."""
    return os.open(path, flags, 0o600)


def _make(folder: Path) -> None:
    """Make a folder and the ones above it, each durable in its parent, and closed to others."""
    if not folder.is_dir():
        _make(folder.parent)
        folder.mkdir(mode=0o700, exist_ok=True)
        _sync(folder.parent)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
