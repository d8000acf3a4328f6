"""Fates: whether a publish of several batches was committed, aborted, or is still under way."""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.backends.nats import subjects
from holdfast.backends.nats.answers import Stored
from holdfast.backends.nats.batch import Message, Stale, state
from holdfast.backends.nats.store import Store
from holdfast.backends.nats.times import parse_stamp

COMMITTED, ABORTED = b"committed", b"aborted"
PATIENCE = 30_000_000  # microseconds; a publish of the largest batch takes a few seconds
_GONE_SECONDS = 1
_PAGE = 1000


class Fates:
    """Looks fates up, and decides those that nobody else will decide any more."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: dict[str, bool] = {}

    async def of(self, channel: str, publishes: Mapping[str, str]) -> dict[str, bool | None]:
        """The fate of each publish, given with the time stamp of one of its messages; None while it is open.

        One that is under way for too long has lost its publisher: whoever waits for it ends it.
        """
        unknown = [name for name in publishes if name not in self._known]
        for at in range(0, len(unknown), _PAGE):
            asked = [subjects.fate(name, channel) for name in unknown[at : at + _PAGE]]
            for found in await self._store.link.last(asked):
                self._known[found.subject.split(".")[2]] = found.data == COMMITTED
        for name in unknown:
            if name not in self._known and await self._age(publishes[name]) > PATIENCE:
                await self.abort(channel, name)
        return {name: self._known.get(name) for name in publishes}

    async def one(self, channel: str, publish: str, stamp: str) -> bool | None:
        """The same for one."""
        return (await self.of(channel, {publish: stamp}))[publish]

    async def _age(self, stamp: str) -> int:
        return parse_stamp((await self._store.info())["ts"]) - parse_stamp(stamp)

    async def under_way(self, channel: str) -> Stored | None:
        """The mark of the oldest publish to the channel that may still be committed; its events follow it."""
        for opened in await self._store.link.last([subjects.opened("*", channel)]):
            if opened.data and await self.one(channel, opened.subject.split(".")[2], opened.stamp) is None:
                return opened
        return None

    async def horizon(self, channel: str) -> int:
        """The sequence up to which the channel can be read: nothing can still be committed below it."""
        newest = await self._store.link.last([channel])  # first: what is opened later stands behind it
        if not newest:
            return 0
        opened = await self.under_way(channel)
        return newest[0].seq if opened is None else min(newest[0].seq, opened.seq)

    async def abort(self, channel: str, publish: str) -> None:
        """End a publish that nobody will commit any more, unless somebody has."""
        opened = await self._store.link.last([subjects.opened(publish, channel)])
        marks = [
            state(subjects.aborted(publish, channel), b"%d" % each.seq, 0) for each in opened if each.data
        ]
        try:
            await self._store.commit([*marks, *end_of(channel, publish, ABORTED)])
            self._known[publish] = False
        except Stale:
            for found in await self._store.link.last([subjects.fate(publish, channel)]):
                self._known[publish] = found.data == COMMITTED

    async def aborted(self, channel: str, after: int, until: int) -> list[int]:
        """The sequences of events in a range that were never committed."""
        found: list[int] = []
        for mark in await self._store.link.last([subjects.aborted("*", channel)]):
            first, last = max(after, int(mark.data)), min(until, mark.seq)
            found += await self._events_of(channel, mark.subject.split(".")[2], first, last)
        return sorted(found)

    async def _events_of(self, channel: str, publish: str, after: int, until: int) -> list[int]:
        found: list[int] = []
        while after < until:
            query = {"seq": after + 1, "next_by_subj": channel, "batch": _PAGE}
            messages, _ = await self._store.link.read(query)
            after = messages[-1].seq if messages else until
            found += [
                each.seq
                for each in messages
                if each.seq <= until and each.headers.get(subjects.PUBLISH) == publish
            ]
        return found


def begin_of(channel: str, publish: str) -> Message:
    """The message that opens a publish of several batches, right before its first event."""
    return state(subjects.opened(publish, channel), b"open", 0)


def end_of(channel: str, publish: str, fate: bytes) -> list[Message]:
    """The messages that end it, one way or the other."""
    return [
        state(subjects.fate(publish, channel), fate, 0),
        state(subjects.opened(publish, channel), b"", ttl=_GONE_SECONDS),
    ]
