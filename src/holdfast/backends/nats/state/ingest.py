"""Ingest: jobs follow from the log. Each consumer's cursor turns entries into jobs, ours and foreign ones."""

from __future__ import annotations

import asyncio
import random
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress

from holdfast.backends.nats.state.entries import Entries
from holdfast.backends.nats.state.job_records import StoredJob
from holdfast.backends.nats.state.mirror import IngestCursor
from holdfast.backends.nats.state.publish_outcome import IdempotencyKeys, foreign_key
from holdfast.backends.nats.state.registry import Member
from holdfast.backends.nats.state.store import TRIES, NatsStore
from holdfast.backends.nats.wire import codec, subjects
from holdfast.backends.nats.wire.batches import BatchMessage, Stale, state
from holdfast.backends.nats.wire.codec import to_micros
from holdfast.backends.nats.wire.parser import StoredMessage
from holdfast.model.errors import Overloaded, Unavailable
from holdfast.model.states import State

_KEEP = 0.5  # of the reserve of a store that is nearly full: a job has to end somewhere, too
PAGE = 450  # a foreign client's event takes a key beside its job
_LATEST = 1 << 60
_HEAD_START, _HEAD_START_EACH, _LONGEST_HEAD_START = 0.12, 0.001, 0.4
_SOME = 100  # entries, where nobody has counted


class _Levelling:
    """Who asked for a consumer to become level, by number, and up to which of them it did."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.asked = self.served = 0


class JobIngest:
    """Moves cursors. Whoever looks at a consumer's jobs brings it level with the log first."""

    def __init__(self, store: NatsStore, entries: Entries, keys: IdempotencyKeys) -> None:
        self._store, self._entries, self._keys = store, entries, keys
        self._levelling: defaultdict[str, _Levelling] = defaultdict(_Levelling)
        self._noticed: dict[str, tuple[int, float]] = {}
        """By consumer: a cursor behind which others may be making jobs, and until when they go first."""

    async def level(self, member: Member) -> None:
        """Every entry so far has a job, except for a consumer that still works on the past.

        In a store that is nearly full they wait in the log: the jobs that there are can still end. Calls that
        wait together share one.
        """
        turn = self._levelling[member.ref]
        turn.asked += 1
        mine = turn.asked
        async with turn.lock:
            if turn.served < mine:
                covered = turn.asked
                await self._level(member)
                turn.served = covered

    async def _level(self, member: Member) -> None:
        stale = 0
        with suppress(Overloaded):
            while True:
                try:
                    return await self.catch_up(member, _never)
                except Stale:
                    stale = await self._again(member, stale)

    async def advance(self) -> None:
        """Make every consumer level that no other process works on; one that is overtaken leaves the rest."""
        behind = await self._behind(list(self._store.registry.by_channel))
        await asyncio.gather(*map(self._advance, behind))

    async def _advance(self, member: Member) -> None:
        ref = member.ref
        cursor = self._store.mirror.cursors.get(ref)
        if cursor is None or cursor.target is not None:
            return
        if not self._is_our_turn(ref, cursor):
            await self._give_head_start(self._notice(ref, cursor, _SOME))
            if self._store.mirror.revision(subjects.cursor(ref)) != cursor.revision:
                return
        with suppress(Stale, Overloaded):
            await self.catch_up(member, _never, waited=True)

    async def level_channel(self, channel: str) -> None:
        """Make all consumers of a channel level."""
        await asyncio.gather(*map(self.level, await self._behind([channel])))

    async def _behind(self, channels: list[str]) -> list[Member]:
        """Return the consumers of some channels for which something was appended, by one request."""
        newest = {each.subject: each.seq for each in await self._store.connection.exact(channels)}
        members, cursors = self._store.registry.by_channel, self._store.mirror.cursors
        return [
            member
            for channel in channels
            for member in members.get(channel, ())
            if member.ref in cursors and cursors[member.ref].at < newest.get(channel, 0)
        ]

    async def catch_up(self, member: Member, enough: Callable[[], bool], *, waited: bool = False) -> None:
        """Make jobs of what was appended, at least a page, until it is enough.

        Whoever moved the cursor last goes first, and all others give it a head start: where every process
        makes the same jobs at the same moment, all but one do it for nothing. A caller that has enough does
        not wait for it. Raises `Stale` where another process was faster.
        """
        while True:
            async with self._store.lock(member.ref):  # between pages others may have it
                cursor = self._store.mirror.cursors.get(member.ref)
                if cursor is None or cursor.target is not None:  # it is being removed, or works on the past
                    return
                ours = waited or self._is_our_turn(member.ref, cursor)
                if ours:
                    found, reached = await self._entries.page(member.channel, cursor.at, PAGE)
                    if reached == cursor.at:
                        return
                    await self._make(member, cursor, found, reached, PAGE)
                    if enough() or len(found) < PAGE:
                        return
                    continue
                appended = await self._entries.count(member.channel, cursor.at)
                if not appended:
                    return
                longest = self._notice(member.ref, cursor, appended)
            if enough():
                return
            await self._give_head_start(longest)
            waited = True

    def _is_our_turn(self, ref: str, cursor: IngestCursor) -> bool:
        """Return whether this process moved the cursor last, or has given others their head start already."""
        revision, until = self._noticed.get(ref, (0, 0.0))
        if revision == cursor.revision:
            return time.monotonic() > until
        self._noticed.pop(ref, None)
        return self._store.mirror.is_ours(subjects.cursor(ref))

    def _notice(self, ref: str, cursor: IngestCursor, appended: int) -> float:
        """Begin the head start of others, unless it has begun; returns how long it is at the most."""
        longest = head_start(appended)
        self._noticed.setdefault(ref, (cursor.revision, time.monotonic() + longest))
        return longest

    async def _give_head_start(self, longest: float) -> None:
        await asyncio.sleep(random.uniform(longest / 4, longest))  # noqa: S311 - it only keeps them apart
        await self._store.mirror.sync()

    async def _again(self, member: Member, stale: int) -> int:
        if stale > TRIES:
            raise Unavailable(
                f"consumer {member.name!r} of {member.channel!r} did not become level; try again"
            )
        await self._store.look_again(stale + 1)
        return stale + 1

    async def backfill(self, ref: str, limit: int) -> int:
        """Turn one page of the past into jobs. Returns how many entries it read, 0 where it was overtaken."""
        await self._store.fresh()
        member = self._store.registry.members.get(ref)
        if member is None:
            return 0
        with suppress(Stale, Overloaded):
            async with self._store.lock(ref):
                cursor = self._store.mirror.cursors.get(ref)
                if cursor is not None and cursor.target is not None:
                    limit = min(limit, PAGE)
                    found, reached = await self._entries.page(member.channel, cursor.at, limit)
                    await self._make(member, cursor, found, reached, limit)
                    return len(found)
        return 0

    async def _make(
        self, member: Member, cursor: IngestCursor, found: list[StoredMessage], reached: int, limit: int
    ) -> None:
        """One page in one batch: the jobs, their count and the cursor."""
        past = cursor.target is not None
        # The past ends where its last entry was, or where nothing of the channel is left before it.
        ended = past and (len(found) < limit or reached >= (cursor.target or 0))
        moved = (
            IngestCursor(reached) if ended or not past else IngestCursor(reached, cursor.target, cursor.since)
        )
        batch = self._store.batch(member.ref)
        for message in found:
            published = self._entries.published(message)
            if cursor.since is None or published >= cursor.since:
                batch.create(self._record(member, message, published))
        subject = subjects.cursor(member.ref)
        batch.also(await self._foreign_keys(member.channel, found))
        batch.also([state(subject, moved.encode(), cursor.revision)])
        messages = batch.messages()
        await self._store.capacity.use(messages, keep=_KEEP)
        try:
            await self._store.commit(messages)
        except Stale:
            await self._store.mirror.sync()
            known = self._store.mirror.cursors.get(member.ref)
            if past or known is None or known.target is not None or known.at < reached:
                raise
            # Another process has made these jobs: nothing is left to repeat.

    async def _foreign_keys(self, channel: str, found: list[StoredMessage]) -> list[BatchMessage]:
        """Another client's events get keys as well, so that they are found by their ids."""
        foreign = {
            subjects.key(channel, codec.source(message), codec.event_id(message)): message.seq
            for message in found
            if subjects.BATCH not in message.headers
        }
        if not foreign:
            return []
        known = await self._keys.find(channel, list(foreign))
        return [foreign_key(key, seq, 0) for key, seq in foreign.items() if key not in known]

    def _record(self, member: Member, message: StoredMessage, published: int) -> StoredJob:
        policy, delivery = member.policy, codec.delivery(message)
        due = published if delivery.at is None else max(published, min(delivery.at, _LATEST))
        headers = message.headers
        key = headers.get(subjects.CE_KEY) if policy.ordered else None
        wait = policy.expires_after
        return StoredJob(
            member.ref,
            message.seq,
            State.SCHEDULED if due > published else State.READY,
            codec.event_id(message),
            codec.source(message),
            published,
            due,
            delivery.priority,
            key,
            None if wait is None else due + to_micros(wait),
        )


def _never() -> bool:
    return False


def head_start(entries: int) -> float:
    """Return the seconds that another process may take to make jobs of so many entries."""
    return _HEAD_START + min(entries * _HEAD_START_EACH, _LONGEST_HEAD_START)
