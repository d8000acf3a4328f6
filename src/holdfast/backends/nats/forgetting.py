"""Forgetting: idempotency keys go when their time has come. Ended jobs expire by themselves.

A walk over the stream in its order: keys stand among everything else, and to ask for them alone would cost
the server a look at every key there is. How far it came is written down, so that each message is passed once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from holdfast.backends.nats import stream, subjects
from holdfast.backends.nats.answers import Stored
from holdfast.backends.nats.batch import Stale, state
from holdfast.backends.nats.bulk import Bulk
from holdfast.backends.nats.floors import floor
from holdfast.backends.nats.locks import Locks
from holdfast.backends.nats.store import TRIES, Store
from holdfast.backends.nats.times import to_micros
from holdfast.model.errors import Unavailable
from holdfast.model.upkeep import Forgotten, Lock

_PAGE, _AT_ONCE = 1000, 200


class Mark(NamedTuple):
    """Every key up to `seq` is forgotten."""

    seq: int
    revision: int


async def forgotten(store: Store) -> Mark:
    """How far the walk came."""
    found = await store.link.last([subjects.FORGOTTEN])
    return Mark(int(found[0].data), found[0].seq) if found else Mark(0, 0)


class Forgetting:
    """Removes old keys, one bounded step at a time."""

    def __init__(self, store: Store, bulk: Bulk, locks: Locks) -> None:
        self._store, self._bulk, self._locks = store, bulk, locks

    async def forget(self, keys: datetime, limit: int, lock: Lock | None) -> Forgotten:
        """Pass at most `limit` messages, and remove the keys among them."""
        await self._store.look()
        end, removed = await self._bulk.first_at(to_micros(keys)) - 1, 0
        if lock is None:
            return Forgotten(await self._count((await forgotten(self._store)).seq, end), 0, more=False)
        for _ in range(TRIES):
            fence, mark = await self._locks.fence(lock), await forgotten(self._store)
            passed = await self._walk(mark.seq, end, limit)
            if not passed:
                return Forgotten(removed, 0, more=False)
            found = [each for each in passed if each.subject.startswith((subjects.KEYS, subjects.FATES))]
            await self._remove(found)
            removed += sum(each.subject.startswith(subjects.KEYS) for each in found)
            try:
                reached = b"%d" % passed[-1].seq
                await self._store.commit([state(subjects.FORGOTTEN, reached, mark.revision), fence])
            except Stale:
                continue
            return Forgotten(removed, 0, len(passed) == limit)
        raise Unavailable("others forget keys at the same time; try again")

    async def _count(self, after: int, end: int) -> int:
        """How many keys there are to remove."""
        found = 0
        while passed := await self._walk(after, end, _PAGE):
            found += sum(each.subject.startswith(subjects.KEYS) for each in passed)
            after = passed[-1].seq
        return found

    async def _walk(self, after: int, end: int, limit: int) -> list[Stored]:
        """The next messages that are old enough, whatever they are."""
        passed: list[Stored] = []
        while len(passed) < limit:
            query = {"seq": after + 1, "next_by_subj": ">", "batch": min(limit - len(passed), _PAGE)}
            messages, pending = await self._store.link.read(query)
            passed += [each for each in messages if each.seq <= end]
            if not messages or not pending or messages[-1].seq > end:
                break
            after = messages[-1].seq
        return passed

    async def _remove(self, found: Sequence[Stored]) -> None:
        """Keys, and the fates of publishes whose events are gone as well; a trim removes the others."""
        fates = [each for each in found if each.subject.startswith(subjects.FATES)]
        channels = {each.subject.split(".", 3)[3] for each in fates}
        floors = {channel: (await floor(self._store, channel)).seq for channel in channels}
        chosen = [
            each.seq
            for each in found
            if each not in fates or each.seq <= floors[each.subject.split(".", 3)[3]]
        ]
        for at in range(0, len(chosen), _AT_ONCE):
            step = chosen[at : at + _AT_ONCE]
            await asyncio.gather(*(stream.delete(self._store.link, seq) for seq in step))
