"""State records, as any client reads them: in key-value buckets of the server."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from heapq import heappop, heappush, nlargest
from typing import Any, TypeVar

import orjson

from holdfast.backends.nats.state.store import NatsStore
from holdfast.backends.nats.wire import stream, subjects
from holdfast.backends.nats.wire.batches import Batches, BatchMessage, Incomplete, Stale, backoff
from holdfast.backends.nats.wire.codec import to_micros
from holdfast.backends.nats.wire.connection import NatsConnection, NoStream
from holdfast.backends.nats.wire.parser import StoredMessage
from holdfast.model.errors import HoldfastError, InvalidInput, Unavailable
from holdfast.model.names import check_stored
from holdfast.model.upkeep import StateRecord

T = TypeVar("T")
_KEY = re.compile(r"[a-zA-Z0-9_-]+\.[a-zA-Z0-9_-]+(\.[a-zA-Z0-9_=/-]+)+")
_PREFIX = re.compile(r"([a-zA-Z0-9_-]+)\.([a-zA-Z0-9_-]+)\.(.*)")
_SETTINGS: dict[str, Any] = {
    "description": stream.BUCKET,
    "max_msgs_per_subject": 1,
    "discard": "new",
    "storage": "file",
    "allow_rollup_hdrs": True,
    "allow_direct": True,
    "deny_delete": True,
    "max_msgs": -1,
    "max_bytes": -1,
    "max_consumers": -1,
}
_API = "$JS.API.STREAM"
_NOT_FOUND, _EXISTS = 10059, 10058
_OPERATION = "KV-Operation"
_PAGE, _TURNS = 500, 5
_INDEX_PAGE = 1000
_Due = tuple[int, str]
"""A due time and a subject."""


class DueIndex:
    """When the records of one bucket are due, in memory.

    It is read when it is first asked for, and from then on only what was written since. So a look costs what
    has changed and what is due, however many records wait.
    """

    def __init__(self, connection: NatsConnection, stream: str) -> None:
        self._connection, self._stream = connection, stream
        self._syncing = asyncio.Lock()
        self._begin()

    def _begin(self) -> None:
        self._known, self._generation = 0, self._connection.generation
        self._current: dict[str, int] = {}
        self._heap: list[tuple[int, str, int]] = []

    async def sync(self) -> None:
        """Learn of everything that was written before this call."""
        async with self._syncing:
            if self._generation != self._connection.generation:  # it may be another server's bucket
                self._begin()
            pending = 1
            while pending:
                query = {"seq": self._known + 1, "next_by_subj": ">", "batch": _INDEX_PAGE}
                found, pending = await self._connection.read(query, self._stream)
                for message in found:
                    self._note(message)

    def _note(self, message: StoredMessage) -> None:
        self._known = message.seq
        self._current.pop(message.subject, None)
        due = message.headers.get(subjects.RECORD_DUE)
        if due is not None:
            self._current[message.subject] = message.seq
            heappush(self._heap, (int(due), message.subject, message.seq))

    def forget(self, gone: Mapping[str, int]) -> None:
        """These subjects, at these revisions, were removed without a trace."""
        for subject, revision in gone.items():
            if self._current.get(subject) == revision:
                del self._current[subject]

    def due(self, prefix: str, now: int, limit: int, after: _Due | None) -> dict[str, int]:
        """Return subjects whose record is due, the oldest first, each with its revision."""
        found: dict[str, int] = {}
        kept: list[tuple[int, str, int]] = []
        while self._heap and self._heap[0][0] <= now and len(found) < limit:
            entry = heappop(self._heap)
            due, subject, revision = entry
            if self._current.get(subject) == revision:
                kept.append(entry)
                if subject.startswith(prefix) and (after is None or (due, subject) > after):
                    found[subject] = revision
        for entry in kept:
            heappush(self._heap, entry)
        return found

    def latest(self, prefix: str, now: int, limit: int, after: _Due | None) -> dict[str, int]:
        """Return the same, the newest first; costs a look at every due time."""
        due = (
            entry
            for entry in self._heap
            if entry[0] <= now
            and (after is None or entry[:2] < after)
            and entry[1].startswith(prefix)
            and self._current.get(entry[1]) == entry[2]
        )
        return {subject: revision for _, subject, revision in nlargest(limit, due)}


class Records:
    """Writes records whole under the revision that was read, and finds those that are due."""

    def __init__(self, store: NatsStore) -> None:
        self._store = store
        self._batches = Batches(store.connection)
        self._indexes: dict[str, DueIndex] = {}
        self._replicated: set[str] = set()
        """Buckets that have as many replicas as the URL asks for."""

    async def put(
        self, key: str, fields: Mapping[str, str], expected: int, due: datetime | None = None
    ) -> int | None:
        check_stored("a record's field", *fields, *fields.values())
        await self._store.recognise()
        bucket, subject = _bucket_and_subject(key)
        headers = {subjects.RECORD_KEY: key}
        if due is not None:
            headers[subjects.RECORD_DUE] = str(to_micros(due))
        message = BatchMessage(subject, orjson.dumps(dict(fields)), headers, expected)
        try:
            return await self._written(bucket, message)
        except Stale:
            gone = None if expected else await self._gone(bucket, subject)
        try:
            return None if gone is None else await self._written(bucket, message._replace(expect=gone))
        except Stale:
            return None

    async def _written(self, bucket: str, message: BatchMessage) -> int:
        try:
            written = await self._batches.commit([message])
            if bucket not in self._replicated:
                await stream.add_replicas(self._store.connection, f"KV_{bucket}")
                self._replicated.add(bucket)
            return written
        except Incomplete:  # nothing captures the subject
            await self._create(bucket)
        try:
            return await self._batches.commit([message])
        except Incomplete:
            raise Unavailable(f"the bucket {bucket} did not take a record; try again") from None

    async def _create(self, bucket: str) -> None:
        settings = _SETTINGS | {"name": f"KV_{bucket}", "subjects": [f"$KV.{bucket}.>"]}
        error = (await stream.create(self._store.connection, settings)).get("error", {})
        if error and error.get("err_code") != _EXISTS:
            raise HoldfastError(f"NATS refused to create the bucket {bucket}: {error.get('description')}")
        await stream.led(self._store.connection, f"KV_{bucket}")

    async def _gone(self, bucket: str, subject: str) -> int | None:
        """Return the revision of the mark that another client's delete has left, if that is what is there."""
        found = await self._newest(bucket, subject)
        return found.seq if found is not None and _OPERATION in found.headers else None

    async def get(self, key: str) -> StateRecord | None:
        await self._store.recognise()
        bucket, subject = _bucket_and_subject(key)
        found = await self._newest(bucket, subject)
        return None if found is None or _OPERATION in found.headers else _record(key, found)

    async def remove(self, key: str, expected: int) -> bool:
        """By a mark, which is removed as well."""
        await self._store.recognise()
        bucket, subject = _bucket_and_subject(key)
        if expected == 0:
            return False
        try:
            mark = await self._batches.commit([BatchMessage(subject, b"", {_OPERATION: "PURGE"}, expected)])
        except (Stale, Incomplete):
            return False
        # What somebody has written over the mark since stays.
        await self._store.connection.request(
            f"{_API}.PURGE.KV_{bucket}", {"filter": subject, "seq": mark + 1}
        )
        return True

    async def due(
        self,
        prefix: str,
        limit: int,
        *,
        newest: bool = False,
        after: tuple[datetime, str] | None = None,
        until: datetime | None = None,
    ) -> list[StateRecord]:
        parts = _PREFIX.fullmatch(prefix)
        if parts is None:
            raise InvalidInput(
                f"the prefix {prefix!r} names no bucket; begin it with two whole tokens, as in 'gbe.state.'"
            )
        end = await self._store.clock() if until is None else to_micros(until)
        bucket = f"{parts[1]}_{parts[2]}"
        index = self._indexes.setdefault(bucket, DueIndex(self._store.connection, f"KV_{bucket}"))
        await self._ask(bucket, index.sync)
        look = index.latest if newest else index.due
        place = None
        if after is not None:
            place = to_micros(after[0]), f"$KV.{bucket}.{after[1].removeprefix(f'{parts[1]}.{parts[2]}.')}"
        while True:
            chosen = look(f"$KV.{bucket}.{parts[3]}", end, limit, place)
            found = {each.subject: each for each in await self._last(bucket, list(chosen))} if chosen else {}
            missing = [subject for subject in chosen if subject not in found]
            there = await asyncio.gather(*(self._newest(bucket, subject) for subject in missing))
            gone = {each: chosen[each] for each, record in zip(missing, there, strict=True) if record is None}
            if not gone:
                break
            index.forget(gone)
        start = len(f"$KV.{bucket}.")
        return [
            _record(f"{parts[1]}.{parts[2]}.{subject[start:]}", found[subject])
            for subject, revision in chosen.items()
            if subject in found and found[subject].seq == revision
        ]

    async def _newest(self, bucket: str, subject: str) -> StoredMessage | None:
        """Return what a subject has, as the bucket's leader knows: the connection may lead to a follower."""
        return await stream.last(self._store.connection, subject, f"KV_{bucket}")

    async def _last(self, bucket: str, wanted: Sequence[str]) -> list[StoredMessage]:
        pages = [wanted[at : at + _PAGE] for at in range(0, len(wanted), _PAGE)]

        async def read() -> list[StoredMessage]:
            return [
                each for page in pages for each in await self._store.connection.last(page, f"KV_{bucket}")
            ]

        return await self._ask(bucket, read) or []

    async def _ask(self, bucket: str, read: Callable[[], Awaitable[T]]) -> T | None:
        """Read from a bucket; None where it does not exist. Somebody may make it at this moment."""
        for turn in range(_TURNS):
            try:
                return await read()
            except NoStream:
                reply = await self._store.connection.request(f"{_API}.INFO.KV_{bucket}")
                if reply.get("error", {}).get("err_code") == _NOT_FOUND:
                    return None
            await backoff(turn)
        raise Unavailable(f"the bucket {bucket} does not answer; try again")


def _bucket_and_subject(key: str) -> tuple[str, str]:
    """Return the bucket of a key, and its subject in it."""
    if not _KEY.fullmatch(key):
        raise InvalidInput(
            f"the record key {key!r} is not usable: write at least three tokens of letters, digits, '_' and "
            "'-', with a dot between them"
        )
    first, second, rest = key.split(".", 2)
    return f"{first}_{second}", f"$KV.{first}_{second}.{rest}"


def _record(key: str, stored: StoredMessage) -> StateRecord:
    named = stored.headers.get(subjects.RECORD_KEY, key)
    if named != key:
        raise InvalidInput(
            f"the record key {key!r} has the same place in its bucket as {named!r}; rename one"
        )
    try:
        fields = orjson.loads(stored.data)
    except ValueError:
        fields = None
    if not isinstance(fields, dict):
        raise HoldfastError(f"the record {key!r} is no JSON object; another client has written it")
    return StateRecord(key, {name: str(value) for name, value in fields.items()}, stored.seq)
