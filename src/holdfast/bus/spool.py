"""The spool: a folder in which a publisher keeps events durably while no store takes them.

Segments of lines, each `CRC JSON`, and a file `drained` with the number of the next event to send, as a line
of the same form. A line is durable (fsync) before its publish is acknowledged. A torn last line was never
acknowledged and is cut; a damaged one in the middle is set aside in `damaged` and named in the log. Where
`drained` is damaged, all that is there is sent again, under the same ids. One process at a time has a spool.
"""

from __future__ import annotations

import base64
import fcntl
import logging
import os
import re
import threading
import time
import zlib
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby, pairwise, zip_longest
from pathlib import Path
from typing import Any

import orjson

from holdfast.model.errors import InvalidInput, Overloaded, Unavailable
from holdfast.model.event import Event

log = logging.getLogger(__name__)

SEGMENT_BYTES = 1_000_000
MAX_BYTES = 256_000_000
_NUMBER = re.compile(r"[0-9]{16}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Spooled:
    """An event on its way, with everything that its publish was given."""

    channel: str
    event: Event
    at: datetime | None
    priority: int


class Spool:
    """The events of one folder, first in, first out. Not for several tasks at once: its user takes turns."""

    def __init__(self, path: str | Path, max_bytes: int = MAX_BYTES) -> None:
        self._path, self._max_bytes = Path(path), max_bytes
        self._lock = self._tail = -1
        self._access = threading.Lock()  # a cancelled task's thread may still be at work
        self._first = self._next = self._bytes = 0
        self._marks: deque[tuple[int, float]] = deque()
        self.refused: Counter[str] = Counter(full=0, store=0, damaged=0)
        """Events that were not kept or not sent, by what refused them: the bound, a store, or a checksum."""

    def open(self) -> None:
        """Take the folder, and find what an earlier process left in it."""
        with self._translated():
            _make(self._path)
            self._take()
            try:
                self._find()
            except BaseException:
                self.close()
                raise

    def _take(self) -> None:
        self._lock = os.open(self._path / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._lock)
            self._lock = -1
            raise InvalidInput(
                f"the spool {self._path} is in use by another process; give each publisher its own folder"
            ) from None

    def _find(self) -> None:
        self._first = self._drained()
        self._remove_drained()
        segments = self._segments()
        self._next = max(self._first, _cut_torn_line(segments[-1]) if segments else 0)
        self._bytes = sum(segment.stat().st_size for segment in segments)
        for segment in segments if len(self) else ():
            self._mark(int(segment.stem), time.time() - segment.stat().st_mtime)
        self._start_segment()

    def _mark(self, number: int, age: float = 0.0) -> None:
        """From this event on they have waited so long: one mark a second is enough."""
        since = time.monotonic() - age
        if not self._marks or since - self._marks[-1][1] >= 1:
            self._marks.append((number, since))

    @property
    def size(self) -> int:
        """What the segments take, up to one of them already sent."""
        return self._bytes

    @property
    def oldest_age(self) -> float:
        """For how many seconds the oldest event has been waiting, to the second; 0.0: there is none.

        What an earlier process has left counts from when the last of its segment was written.
        """
        first, marks = self._first, tuple(self._marks)  # at once: another thread may be at work
        if not len(self) or not marks:
            return 0.0
        since = max((at for number, at in marks if number <= first), default=marks[0][1])
        return max(0.0, time.monotonic() - since)

    def _drained(self) -> int:
        """The number of the next event to send."""
        oldest = min((int(segment.stem) for segment in self._segments()), default=0)
        note = self._path / "drained"
        if not note.exists():
            return oldest
        try:
            number = _checked(note.read_bytes().removesuffix(b"\n"))
            return number if type(number) is int and number >= oldest else oldest
        except ValueError as error:
            log.error("%s is damaged, so that all of the spool is sent again: %s", note, error)
            return oldest

    def close(self) -> None:
        """Let another process have the folder."""
        with self._access:
            for descriptor in (self._tail, self._lock):
                if descriptor >= 0:
                    os.close(descriptor)
            self._tail = self._lock = -1

    def __len__(self) -> int:
        return self._next - self._first

    def append(self, entries: Sequence[Spooled]) -> None:
        """Keep events; they are durable when this returns. `Overloaded` where the bound is reached."""
        with self._access:
            self._append(entries)

    def _append(self, entries: Sequence[Spooled]) -> None:
        lines = b"".join(_line(entry) for entry in entries)
        if self._bytes + len(lines) > self._max_bytes:
            self.refused["full"] += len(entries)
            raise Overloaded(
                f"the spool {self._path} holds {self._bytes} of {self._max_bytes} bytes; "
                "publish again once a store is back and has taken them"
            )
        with self._translated():
            size = self._write(lines)
        self._mark(self._next)
        self._next += len(entries)
        self._bytes += len(lines)
        if size > SEGMENT_BYTES:
            with suppress(OSError):  # no room for a new one: this one grows, and the next append tries again
                self._start_segment()

    def _write(self, lines: bytes) -> int:
        """Add lines to the last segment, all or none; answers its size."""
        size = os.fstat(self._tail).st_size
        try:
            _write_all(self._tail, lines)
            os.fsync(self._tail)
        except OSError:
            os.ftruncate(self._tail, size)  # half a batch must not be sent later: it was refused
            raise
        return size + len(lines)

    def peek(self, limit: int) -> list[Spooled]:
        """The oldest events, up to `limit`. A damaged one is set aside, and the next one is the oldest."""
        while True:
            found: list[Spooled] = []
            for line in self._lines(min(limit, len(self))):
                try:
                    found.append(_parse(line))
                except (ValueError, TypeError) as error:
                    if found:
                        return found
                    log.error("event %s of the spool %s is damaged: %s", self._first, self._path, error)
                    self.refused["damaged"] += 1
                    self._note("damaged", line + b"\n")
                    self.advance(1)
                    break
            else:
                return found

    def _lines(self, count: int) -> Iterator[bytes]:
        """The oldest `count` lines. What is appended meanwhile may be half there, and is not among them."""
        number = self._first
        segments = self._segments()
        for segment, following in zip_longest(segments, segments[1:]):
            size = None if following is None else int(following.stem) - int(segment.stem)
            for line in _lines_of(segment, size)[number - int(segment.stem) :]:
                if number == self._first + count:
                    return
                yield line
                number += 1

    def advance(self, count: int) -> None:
        """The oldest `count` events are where they belong. A closed spool sends them again."""
        with self._access:
            if self._lock >= 0:
                self._advance(count)

    def _advance(self, count: int) -> None:
        self._first += count
        while len(self._marks) > 1 and self._marks[1][0] <= self._first:
            self._marks.popleft()
        if not len(self):
            self._marks.clear()
        fresh = self._path / "drained.new"
        with open(fresh, "wb", opener=_private) as file:
            file.write(_sealed(orjson.dumps(self._first)))
        _sync(fresh)
        fresh.rename(self._path / "drained")
        _sync(self._path)
        if not len(self):
            self._start_segment()
        self._remove_drained()

    def set_aside(self, entry: Spooled, error: Exception) -> None:
        """Keep an event that no store will ever take beside the others, with the reason."""
        self.refused["store"] += 1
        self._note("refused", orjson.dumps({"error": str(error)}) + b" " + _line(entry))

    def _note(self, name: str, line: bytes) -> None:
        with open(self._path / name, "ab", opener=_private) as file:
            file.write(line)
            file.flush()
            os.fsync(file.fileno())
        _sync(self._path)

    def _segments(self) -> list[Path]:
        return sorted(path for path in self._path.glob("*.log") if _NUMBER.fullmatch(path.stem))

    def _start_segment(self) -> None:
        name = self._path / f"{self._next:016d}.log"
        former, self._tail = self._tail, os.open(name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        if former >= 0:
            os.close(former)
        _sync(self._path)

    def _remove_drained(self) -> None:
        segments = self._segments()
        for segment, following in pairwise(segments):
            if int(following.stem) <= self._first:
                self._bytes -= segment.stat().st_size
                segment.unlink()

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise Unavailable(
                f"the spool {self._path} cannot be used: {error.strerror or error}; nothing was kept"
            ) from error


def _lines_of(segment: Path, size: int | None) -> list[bytes]:
    """A segment's lines, as many as it has events: the next one counts on from there.

    Damage can make two lines of one, or one of two. Neighbours that are damaged are one line then, and what
    is missing is put as empty ones behind the others: both are set aside, and every whole line is sent.
    """
    lines = segment.read_bytes().split(b"\n")[:-1]
    if size is None or len(lines) == size:
        return lines
    kept: list[bytes] = []
    for whole, group in groupby(lines, _is_whole):
        found = list(group)
        kept += found if whole else [b"\n".join(found)]
    return kept + [b""] * (size - len(kept))


def _cut_torn_line(segment: Path) -> int:
    """Remove what a crash left of an unacknowledged append; answers the number of the next event."""
    content = segment.read_bytes()
    whole = content[: content.rfind(b"\n") + 1]
    if len(whole) < len(content):
        os.truncate(segment, len(whole))
        _sync(segment)
    return int(segment.stem) + whole.count(b"\n")


def _line(entry: Spooled) -> bytes:
    data, name, source, kind, key, time, headers = entry.event
    values = [
        entry.channel,
        base64.b64encode(data).decode(),
        [name, source, kind, key, time, dict(headers)],
        entry.at,
        entry.priority,
    ]
    return _sealed(orjson.dumps(values))


def _sealed(document: bytes) -> bytes:
    return b"%08x %b\n" % (zlib.crc32(document), document)


def _checked(line: bytes) -> Any:
    """What a line says, if it is still what was written."""
    checksum, _, document = line.partition(b" ")
    if int(checksum, 16) != zlib.crc32(document):
        raise ValueError("its checksum is wrong")
    return orjson.loads(document)


def _is_whole(line: bytes) -> bool:
    try:
        _checked(line)
    except ValueError:
        return False
    return True


def _parse(line: bytes) -> Spooled:
    channel, data, (name, source, kind, key, time, headers), at, priority = _checked(line)
    event = Event(base64.b64decode(data), name, source, kind, key, _time(time), headers)
    return Spooled(channel, event, _time(at), priority)


def _time(value: Any) -> datetime | None:
    return None if value is None else datetime.fromisoformat(value)


def _write_all(descriptor: int, content: bytes) -> None:
    view = memoryview(content)
    while view:
        view = view[os.write(descriptor, view) :]


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


def runs(entries: Sequence[Spooled]) -> Iterator[list[Spooled]]:
    """Neighbours that can go in one publish."""
    run: list[Spooled] = []
    for entry in entries:
        if run and (entry.channel, entry.at, entry.priority) != (run[0].channel, run[0].at, run[0].priority):
            yield run
            run = []
        run.append(entry)
    if run:
        yield run
