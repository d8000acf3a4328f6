"""The index of dead letters: a small message for each, by consumer, reason and fingerprint.

Entries stand in the stream in the order of the deaths, and their subjects are what is asked for: the server
finds the few that are meant among millions. It reads forward only; the latest come first all the same, by
looking at ever earlier windows of sequences.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from typing import NamedTuple

import orjson

from holdfast.backends.nats.state import job_records
from holdfast.backends.nats.state.job_records import StoredJob
from holdfast.backends.nats.state.mirror import TOMBSTONE_SECONDS
from holdfast.backends.nats.state.store import NatsStore
from holdfast.backends.nats.wire import subjects
from holdfast.backends.nats.wire.connection import NatsConnection
from holdfast.backends.nats.wire.parser import StoredMessage
from holdfast.model.errors import Unavailable

_PAGE = 1000
_TRUSTED = TOMBSTONE_SECONDS / 2
_EACH = 4  # messages that a death takes, one of them in the index
_WIDER = 4
_NOWHERE = -1
AT_ONCE = 100
"""Entries that are worth one read."""


class IndexEntry(NamedTuple):
    """A dead letter as the index has it; `job` is its event's sequence, `seq` the entry's own."""

    ref: str
    reason: str
    fingerprint: str
    job: int
    died: int
    seq: int


def index_entry(message: StoredMessage) -> IndexEntry | None:
    """Return what a message of the index says; None for one that tells that its dead letter left."""
    if not message.data:
        return None
    return IndexEntry(*subjects.indexed(message.subject), int(message.data), message.seq)


async def backwards(
    connection: NatsConnection, subject: str, until: int, size: int
) -> AsyncIterator[list[StoredMessage]]:
    """Yield what a subject matches up to a sequence, the newest first, in pages of at most `size`.

    A window that holds more than a page is halved until it does not; one that holds little makes the next one
    wider. So a page costs one or two reads where deaths are many, and where there were none for long a number
    that grows with the logarithm of the stream.
    """
    width, crowded = size * _EACH // 2, _NOWHERE  # what stands behind `crowded` is more than a page
    while until > 0:
        before = max(until - width, 0)
        if before <= crowded:
            before = (crowded + until) // 2
        found, pending = await connection.read({"seq": before + 1, "next_by_subj": subject, "batch": size})
        if pending and found[-1].seq < until:
            crowded = before
            continue
        page = [message for message in reversed(found) if message.seq <= until]
        if page:
            yield page
        width = (until - before) * (_WIDER if len(page) * _WIDER < size else 1)
        until, crowded = before, crowded if crowded < before else _NOWHERE


async def death_times(store: NatsStore, ref: str) -> tuple[int, int] | None:
    """Return when the first and the last dead letter of a consumer died; they are indexed in that order."""
    connection, subject, first = store.connection, subjects.index(ref), 1
    while True:
        messages, pending = await connection.read({"seq": first, "next_by_subj": subject, "batch": AT_ONCE})
        here = [each for each in map(index_entry, messages) if each is not None]
        if here or not pending:
            break
        first = messages[-1].seq + 1
    last = int((await store.info())["state"]["last_seq"])
    async for page in backwards(connection, subject, last, AT_ONCE):
        latest = next((each for each in map(index_entry, page) if each is not None), None)
        if here and latest is not None:
            return here[0].died, latest.died
    return None


async def letters(store: NatsStore, jobs: Iterable[tuple[str, int]]) -> dict[tuple[str, int], StoredJob]:
    """Return the records of some dead letters, by consumer and event, without what is not dead."""
    wanted = {subjects.dead(ref, seq): (ref, seq) for ref, seq in jobs}
    found = await store.connection.exact(list(wanted))
    return {wanted[each.subject]: job_records.decode(each.data, each.seq) for each in found if each.data}


class Recount:
    """Counts the dead letters of one consumer one by one; goes on from where it was in the index."""

    def __init__(self, connection: NatsConnection, ref: str) -> None:
        self._connection, self._index, self._left = connection, subjects.index(ref), subjects.left(ref)
        self._known = {self._index: 0, self._left: 0}
        self._began = time.monotonic()
        self._dead: dict[int, IndexEntry] = {}

    async def read_on(self) -> None:
        """Learn which jobs died or left since the last time. Raises `Unavailable` where it took too long."""
        async for message in self._new(self._index):
            died = index_entry(message)
            if died is not None:
                self._dead[died.job] = died
        async for message in self._new(self._left):
            for job in orjson.loads(message.data):
                if job in self._dead and self._dead[job].seq < message.seq:
                    del self._dead[job]
        if time.monotonic() - self._began > _TRUSTED:  # messages that tell who left may have expired by now
            raise Unavailable(f"the dead letters could not be counted in {_TRUSTED:g} s; purge some")

    async def _new(self, subject: str) -> AsyncIterator[StoredMessage]:
        pending = 1
        while pending:
            query = {"seq": self._known[subject] + 1, "next_by_subj": subject, "batch": _PAGE}
            found, pending = await self._connection.read(query)
            for message in found:
                self._known[subject] = message.seq
                yield message

    def reasons(self) -> Counter[str]:
        return Counter(each.reason for each in self._dead.values())

    def clusters(self) -> Counter[str]:
        return Counter(each.fingerprint for each in self._dead.values())
