"""The agenda: when the records of a bucket are due, in memory.

It is read when it is first asked for, and from then on only what was written since. So a look costs what has
changed and what is due, however many records wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from heapq import heappop, heappush, nlargest

from holdfast.backends.nats import subjects
from holdfast.backends.nats.answers import Stored
from holdfast.backends.nats.link import Link

_PAGE = 1000
Place = tuple[int, str]
"""A due time and a subject."""


class Agenda:
    """The due times of one bucket."""

    def __init__(self, link: Link, stream: str) -> None:
        self._link, self._stream = link, stream
        self._syncing = asyncio.Lock()
        self._begin()

    def _begin(self) -> None:
        self._known, self._generation = 0, self._link.generation
        self._current: dict[str, int] = {}
        self._heap: list[tuple[int, str, int]] = []

    async def sync(self) -> None:
        """Learn of everything that was written before this call."""
        async with self._syncing:
            if self._generation != self._link.generation:  # it may be another server's bucket
                self._begin()
            pending = 1
            while pending:
                query = {"seq": self._known + 1, "next_by_subj": ">", "batch": _PAGE}
                found, pending = await self._link.read(query, self._stream)
                for message in found:
                    self._note(message)

    def _note(self, message: Stored) -> None:
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

    def due(self, prefix: str, now: int, limit: int, after: Place | None) -> dict[str, int]:
        """Subjects whose record is due, the oldest first, each with its revision."""
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

    def latest(self, prefix: str, now: int, limit: int, after: Place | None) -> dict[str, int]:
        """The same, the newest first; costs a look at every due time."""
        due = (
            entry
            for entry in self._heap
            if entry[0] <= now
            and (after is None or entry[:2] < after)
            and entry[1].startswith(prefix)
            and self._current.get(entry[1]) == entry[2]
        )
        return {subject: revision for _, subject, revision in nlargest(limit, due)}
