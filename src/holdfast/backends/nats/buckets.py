"""Buckets: state records as any client reads them, in key-value buckets of the server."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeVar

import orjson

from holdfast.backends.nats import subjects
from holdfast.backends.nats.agenda import Agenda
from holdfast.backends.nats.answers import Stored
from holdfast.backends.nats.batch import Batches, Incomplete, Message, Stale
from holdfast.backends.nats.link import NoStream
from holdfast.backends.nats.pauses import step_aside
from holdfast.backends.nats.store import Store
from holdfast.backends.nats.times import to_micros
from holdfast.model.errors import HoldfastError, InvalidInput, Unavailable
from holdfast.model.text import check_stored
from holdfast.model.upkeep import Record

T = TypeVar("T")
_KEY = re.compile(r"[a-zA-Z0-9_-]+\.[a-zA-Z0-9_-]+(\.[a-zA-Z0-9_=/-]+)+")
_PREFIX = re.compile(r"([a-zA-Z0-9_-]+)\.([a-zA-Z0-9_-]+)\.(.*)")
_SETTINGS: dict[str, Any] = {
    "max_msgs_per_subject": 1,
    "discard": "new",
    "storage": "file",
    "num_replicas": 1,
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


class Buckets:
    """Writes records whole under the revision that was read, and finds those that are due."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._batches = Batches(store.link)
        self._agendas: dict[str, Agenda] = {}

    async def put(
        self, key: str, fields: Mapping[str, str], expected: int, due: datetime | None
    ) -> int | None:
        """Write a record if it still has the revision that is expected; answers the new one."""
        check_stored("a record's field", *fields, *fields.values())
        await self._store.recognise()
        bucket, subject = _place(key)
        headers = {subjects.RECORD_KEY: key}
        if due is not None:
            headers[subjects.RECORD_DUE] = str(to_micros(due))
        message = Message(subject, orjson.dumps(dict(fields)), headers, expected)
        try:
            return await self._written(bucket, message)
        except Stale:
            gone = None if expected else await self._gone(bucket, subject)
        try:
            return None if gone is None else await self._written(bucket, message._replace(expect=gone))
        except Stale:
            return None

    async def _written(self, bucket: str, message: Message) -> int:
        try:
            return await self._batches.commit([message])
        except Incomplete:  # nothing captures the subject
            await self._create(bucket)
        try:
            return await self._batches.commit([message])
        except Incomplete:
            raise Unavailable(f"the bucket {bucket} did not take a record; try again") from None

    async def _create(self, bucket: str) -> None:
        name = f"KV_{bucket}"
        settings = _SETTINGS | {"name": name, "subjects": [f"$KV.{bucket}.>"]}
        answer = await self._store.link.request(f"{_API}.CREATE.{name}", settings)
        error = answer.get("error", {})
        if error and error.get("err_code") != _EXISTS:
            raise HoldfastError(f"NATS refused to create the bucket {bucket}: {error.get('description')}")

    async def _gone(self, bucket: str, subject: str) -> int | None:
        """The revision of the mark that another client's delete has left, if that is what is there."""
        found = await self._last(bucket, [subject])
        return found[0].seq if found and _OPERATION in found[0].headers else None

    async def record(self, key: str) -> Record | None:
        """One record."""
        await self._store.recognise()
        bucket, subject = _place(key)
        found = await self._last(bucket, [subject])
        return _record(key, found[0]) if found and _OPERATION not in found[0].headers else None

    async def remove(self, key: str, expected: int) -> bool:
        """Remove a record if it still has the revision that is expected: by a mark, which then goes too."""
        await self._store.recognise()
        bucket, subject = _place(key)
        if expected == 0:
            return False
        try:
            mark = await self._batches.commit([Message(subject, b"", {_OPERATION: "PURGE"}, expected)])
        except (Stale, Incomplete):
            return False
        # What somebody has written over the mark since stays.
        await self._store.link.request(f"{_API}.PURGE.KV_{bucket}", {"filter": subject, "seq": mark + 1})
        return True

    async def due(
        self, prefix: str, limit: int, newest: bool, after: tuple[datetime, str] | None
    ) -> list[Record]:
        """Records under a prefix whose time has come, the oldest or the newest first."""
        parts = _PREFIX.fullmatch(prefix)
        if parts is None:
            raise InvalidInput(
                f"the prefix {prefix!r} names no bucket; begin it with two whole tokens, as in 'gbe.state.'"
            )
        now, bucket = await self._store.clock(), f"{parts[1]}_{parts[2]}"
        agenda = self._agendas.setdefault(bucket, Agenda(self._store.link, f"KV_{bucket}"))
        await self._ask(bucket, agenda.sync)
        look = agenda.latest if newest else agenda.due
        place = None
        if after is not None:
            place = to_micros(after[0]), f"$KV.{bucket}.{after[1].removeprefix(f'{parts[1]}.{parts[2]}.')}"
        while True:
            chosen = look(f"$KV.{bucket}.{parts[3]}", now, limit, place)
            found = {each.subject: each for each in await self._last(bucket, list(chosen))} if chosen else {}
            gone = {subject: revision for subject, revision in chosen.items() if subject not in found}
            if not gone:
                break
            agenda.forget(gone)
        start = len(f"$KV.{bucket}.")
        return [
            _record(f"{parts[1]}.{parts[2]}.{subject[start:]}", found[subject])
            for subject, revision in chosen.items()
            if subject in found and found[subject].seq == revision
        ]

    async def _last(self, bucket: str, wanted: Sequence[str]) -> list[Stored]:
        pages = [wanted[at : at + _PAGE] for at in range(0, len(wanted), _PAGE)]

        async def read() -> list[Stored]:
            return [each for page in pages for each in await self._store.link.last(page, f"KV_{bucket}")]

        return await self._ask(bucket, read) or []

    async def _ask(self, bucket: str, read: Callable[[], Awaitable[T]]) -> T | None:
        """Read from a bucket; None where it does not exist. Somebody may make it at this moment."""
        for turn in range(_TURNS):
            try:
                return await read()
            except NoStream:
                answer = await self._store.link.request(f"{_API}.INFO.KV_{bucket}")
                if answer.get("error", {}).get("err_code") == _NOT_FOUND:
                    return None
            await step_aside(turn)
        raise Unavailable(f"the bucket {bucket} does not answer; try again")


def _place(key: str) -> tuple[str, str]:
    """The bucket of a key, and its subject in it."""
    if not _KEY.fullmatch(key):
        raise InvalidInput(
            f"the record key {key!r} is not usable: write at least three tokens of letters, digits, '_' and "
            "'-', with a dot between them"
        )
    first, second, rest = key.split(".", 2)
    return f"{first}_{second}", f"$KV.{first}_{second}.{rest}"


def _record(key: str, stored: Stored) -> Record:
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
    return Record(key, {name: str(value) for name, value in fields.items()}, stored.seq)
