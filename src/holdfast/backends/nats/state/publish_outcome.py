"""What became of a publish: of one of several batches, and of an event by its idempotency key."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import orjson

from holdfast.backends.nats.state.store import NatsStore
from holdfast.backends.nats.wire import codec, subjects
from holdfast.backends.nats.wire.batches import BatchMessage, Stale, state
from holdfast.backends.nats.wire.codec import parse_stamp
from holdfast.backends.nats.wire.parser import StoredMessage
from holdfast.model.errors import Unavailable

COMMITTED, ABORTED = b"committed", b"aborted"
PATIENCE = 30_000_000  # microseconds; a publish of the largest batch takes a few seconds
_GONE_SECONDS = 1
_PAGE = 1000
_MOST_KNOWN = 10_000
"""Outcomes that a process remembers."""
_KEYS_AT_ONCE = 500
_PAUSE, _TURNS = 0.05, 700


class PublishOutcomes:
    """Whether publishes of several batches were committed; decides it where their publisher is gone."""

    def __init__(self, store: NatsStore) -> None:
        self._store = store
        self._known: dict[str, bool] = {}

    async def of(self, channel: str, publishes: Mapping[str, str]) -> dict[str, bool | None]:
        """Return whether each publish, given with a stamp of it, was committed; None while it is open.

        One that is under way for too long has lost its publisher: whoever waits for it ends it.
        """
        if len(self._known) > _MOST_KNOWN:
            self._known.clear()
        unknown = [name for name in publishes if name not in self._known]
        for at in range(0, len(unknown), _PAGE):
            asked = [subjects.outcome(name, channel) for name in unknown[at : at + _PAGE]]
            for found in await self._store.connection.last(asked):
                self._known[found.subject.split(".")[2]] = found.data == COMMITTED
        for name in unknown:
            if name not in self._known and await self._age(publishes[name]) > PATIENCE:
                await self.abort(channel, name)
        return {name: self._known.get(name) for name in publishes}

    async def one(self, channel: str, publish: str, stamp: str) -> bool | None:
        """Return the same for one."""
        return (await self.of(channel, {publish: stamp}))[publish]

    async def _age(self, stamp: str) -> int:
        return parse_stamp((await self._store.info())["ts"]) - parse_stamp(stamp)

    async def under_way(self, channel: str) -> StoredMessage | None:
        """Return the mark of the oldest publish that may still be committed; its events follow it."""
        for opened in await self._store.connection.last([subjects.opened("*", channel)]):
            if opened.data and await self.one(channel, opened.subject.split(".")[2], opened.stamp) is None:
                return opened
        return None

    async def horizon(self, channel: str) -> int:
        """Return the sequence up to which a channel can be read: nothing can still be committed below it."""
        newest = await self._store.connection.last([channel])  # first: what is opened later stands behind it
        if not newest:
            return 0
        opened = await self.under_way(channel)
        return newest[0].seq if opened is None else min(newest[0].seq, opened.seq)

    async def abort(self, channel: str, publish: str) -> None:
        """End a publish that nobody will commit any more, unless somebody has."""
        await self._store.recognise()  # the connection may have been lost in the middle of it
        opened = await self._store.connection.last([subjects.opened(publish, channel)])
        marks = [
            state(subjects.aborted(publish, channel), b"%d" % each.seq, 0) for each in opened if each.data
        ]
        try:
            await self._store.commit([*marks, *end_of(channel, publish, ABORTED)])
            self._known[publish] = False
        except Stale:
            for found in await self._store.connection.last([subjects.outcome(publish, channel)]):
                self._known[publish] = found.data == COMMITTED

    async def aborted(self, channel: str, after: int, until: int) -> list[int]:
        """Return the sequences of events in a range that were never committed."""
        found: list[int] = []
        for mark in await self._store.connection.last([subjects.aborted("*", channel)]):
            first, last = max(after, int(mark.data)), min(until, mark.seq)
            found += await self._events_of(channel, mark.subject.split(".")[2], first, last)
        return sorted(found)

    async def _events_of(self, channel: str, publish: str, after: int, until: int) -> list[int]:
        found: list[int] = []
        while after < until:
            query = {"seq": after + 1, "next_by_subj": channel, "batch": _PAGE}
            messages, _ = await self._store.connection.read(query)
            after = messages[-1].seq if messages else until
            found += [
                each.seq
                for each in messages
                if each.seq <= until and each.headers.get(subjects.PUBLISH) == publish
            ]
        return found


def begin_of(channel: str, publish: str) -> BatchMessage:
    """Return the message that opens a publish of several batches, right before its first event."""
    return state(subjects.opened(publish, channel), b"open", 0)


def end_of(channel: str, publish: str, outcome: bytes) -> list[BatchMessage]:
    """Return the messages that end it, one way or the other."""
    return [
        state(subjects.outcome(publish, channel), outcome, 0),
        state(subjects.opened(publish, channel), b"", ttl=_GONE_SECONDS),
    ]


@dataclass(frozen=True, slots=True)
class KnownKey:
    """What is known of a key. Its event belongs at `place`, and `seq` is None where it is not there for sure;
    a publish may then replace the key at `revision`. Without a digest it is a foreign client's event, whose
    content nobody compares."""

    revision: int
    place: int
    digest: str
    there: bool = True

    @property
    def seq(self) -> int | None:
        return self.place if self.there else None


def key_message(
    subject: str, digest: str, step: int, publish: str | None = None, expect: int | None = None
) -> BatchMessage:
    """Return a key whose event stands `step` messages behind it in the same batch."""
    return state(subject, orjson.dumps([digest, step, publish]), expect)


def foreign_key(subject: str, seq: int, expect: int) -> BatchMessage:
    """Return a key for an event that another client has appended."""
    return state(subject, orjson.dumps(["", 0, None, seq]), expect)


class IdempotencyKeys:
    """Looks keys up in bulk."""

    def __init__(self, store: NatsStore, outcomes: PublishOutcomes) -> None:
        self._store, self._outcomes = store, outcomes

    async def find(self, channel: str, keys: Sequence[str]) -> dict[str, KnownKey]:
        """Return what is known of each key, without those that are not there."""
        pages = [keys[at : at + _KEYS_AT_ONCE] for at in range(0, len(keys), _KEYS_AT_ONCE)]
        reads = [self._store.connection.read({"multi_last": page, "batch": _KEYS_AT_ONCE}) for page in pages]
        found = [message for messages, _ in await asyncio.gather(*reads) for message in messages]
        keys_known = await asyncio.gather(*(self._known(channel, message) for message in found))
        return {message.subject: known for message, known in zip(found, keys_known, strict=True)}

    async def _known(self, channel: str, message: StoredMessage) -> KnownKey:
        digest, step, publish, *foreign = orjson.loads(message.data)
        known = KnownKey(message.seq, foreign[0] if foreign else message.seq + step, digest)
        if foreign:
            return known
        if publish is not None:
            committed = await self._outcome(publish, channel, message)
            return replace(known, there=committed)
        # A server that died or was full in the middle of a batch may have kept the key without its event.
        # Then something else stands in its place, or nothing; one that was trimmed is before the trim mark.
        event = await self._store.connection.at(channel, known.place)
        if event is not None:
            return replace(known, there=_key_of(channel, event) == message.subject)
        return replace(known, there=known.place <= (await self._store.trim_mark(channel)).seq)

    async def _outcome(self, publish: str, channel: str, message: StoredMessage) -> bool:
        """Wait for the end of a publish that is under way. Raises `Unavailable`."""
        for _ in range(_TURNS):
            outcome = await self._outcomes.one(channel, publish, message.stamp)
            if outcome is not None:
                return outcome
            await asyncio.sleep(_PAUSE)
        raise Unavailable("the same events are being published by somebody else; try again")


def _key_of(channel: str, event: StoredMessage) -> str:
    return subjects.key(channel, codec.source(event), codec.event_id(event))
