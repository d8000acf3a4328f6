"""Entries: the log as it may be read, without what a publish of several batches has not committed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

from holdfast.backends.nats import codec, subjects
from holdfast.backends.nats.batch import Message, Stale, state
from holdfast.backends.nats.link import Stored
from holdfast.backends.nats.mirror import TOMBSTONE_SECONDS
from holdfast.backends.nats.store import Store
from holdfast.backends.nats.times import parse_stamp
from holdfast.model.event import Event

PAGE = 1000
COMMITTED, ABORTED = b"committed", b"aborted"
_PATIENCE = 30_000_000  # microseconds; a publish of the largest batch takes a few seconds


class Entries:
    """Reads messages of channels, and events whole."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._fates: dict[str, bool] = {}

    async def page(self, channel: str, after: int, limit: int) -> tuple[list[Stored], int]:
        """Up to `limit` entries after a sequence, in order, and the sequence up to which there are no others.

        It ends before a publish that is under way, since that may still commit below what comes later.
        """
        found: list[Stored] = []
        while len(found) < limit:
            query = {"seq": after + 1, "next_by_subj": channel, "batch": min(limit - len(found), PAGE)}
            messages, pending = await self._store.link.read(query)
            for message in messages:
                publish = message.headers.get(subjects.PUBLISH)
                fate = True if publish is None else await self.fate(publish, message.stamp)
                if fate is None:
                    return found, after
                after = message.seq
                if fate:
                    found.append(message)
            if not pending:
                break
        return found, after

    async def fate(self, publish: str, stamp: str) -> bool | None:
        """Whether a publish of several batches was committed; None while it may still be.

        One that is under way for too long has lost its publisher: whoever waits for it ends it.
        """
        known = self._fates.get(publish)
        if known is not None:
            return known
        decided = await self._decided(publish)
        if decided is None and await self._age(stamp) > _PATIENCE:
            decided = await self.abort(publish)
        if decided is not None:
            self._fates[publish] = decided
        return decided

    async def fate_of_open(self, publish: str) -> bool | None:
        """The fate of a publish that is known to have begun, by its first message."""
        query = {"multi_last": [subjects.opened(publish)], "batch": 1}
        found, _ = await self._store.link.read(query)
        return await self.fate(publish, found[0].stamp) if found else None

    async def _decided(self, publish: str) -> bool | None:
        found, _ = await self._store.link.read({"multi_last": [subjects.fate(publish)], "batch": 1})
        return found[0].data == COMMITTED if found else None

    async def _age(self, stamp: str) -> int:
        return parse_stamp((await self._store.info())["ts"]) - parse_stamp(stamp)

    async def abort(self, publish: str) -> bool | None:
        """End a publish that nobody will commit any more; answers its fate."""
        try:
            await self._store.commit(end_of(publish, ABORTED))
        except Stale:
            return await self._decided(publish)
        return False

    async def at(self, channel: str, seqs: Sequence[int]) -> dict[int, Stored]:
        """The messages of some sequences, as far as they still are in the log."""
        if not seqs:
            return {}
        # Jobs mostly leave in log order: one page often has them all.
        first = {"seq": min(seqs), "next_by_subj": channel, "batch": min(len(seqs), PAGE)}
        messages, _ = await self._store.link.read(first)
        found, wanted = {message.seq: message for message in messages}, set(seqs)
        rest = [{"seq": seq, "next_by_subj": channel, "batch": 1} for seq in wanted - found.keys()]
        for messages, _ in await asyncio.gather(*map(self._store.link.read, rest)):
            found |= {message.seq: message for message in messages}
        return {seq: message for seq, message in found.items() if seq in wanted}

    async def events(self, messages: Iterable[Stored]) -> list[Event]:
        """Messages as events; the parts of large ones are fetched."""
        return [await self._event(message) for message in messages]

    async def _event(self, message: Stored) -> Event:
        count, published = codec.part_count(message), self.published(message)
        if not count:
            return codec.decode(message, published)
        parts: list[bytes] = []
        after = message.seq - count - 1
        while len(parts) < count:
            query = {"seq": after + 1, "next_by_subj": subjects.PARTS, "batch": count - len(parts)}
            found, _ = await self._store.link.read(query)
            if not found or found[-1].seq >= message.seq:
                break
            parts += [part.data for part in found]
            after = found[-1].seq
        return codec.decode(message, published, b"".join(parts) if len(parts) == count else None)

    def published(self, message: Stored) -> int:
        """When a message was stored, in the store's time."""
        return parse_stamp(message.stamp) + self._store.registry.offset_at(message.seq)


def end_of(publish: str, fate: bytes) -> list[Message]:
    """The messages that end a publish of several batches, one way or the other."""
    return [
        state(subjects.fate(publish), fate, 0),
        state(subjects.opened(publish), b"", ttl=TOMBSTONE_SECONDS),
    ]
