"""Publishing: events and their idempotency keys, all or none, in one batch or in several of one outcome."""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice

import orjson

from holdfast.backends.nats.state import frontiers
from holdfast.backends.nats.state.backlogs import Backlogs
from holdfast.backends.nats.state.counts import live
from holdfast.backends.nats.state.entries import Entries
from holdfast.backends.nats.state.publish_outcome import (
    COMMITTED,
    IdempotencyKeys,
    PublishOutcomes,
    begin_of,
    end_of,
    key_message,
)
from holdfast.backends.nats.state.registry import Member
from holdfast.backends.nats.state.store import TRIES, NatsStore
from holdfast.backends.nats.wire import codec, subjects
from holdfast.backends.nats.wire.batches import MOST, MOST_BYTES, BatchMessage, Stale, backoff, state
from holdfast.backends.nats.wire.codec import Delivery
from holdfast.model.errors import IdConflict, Overloaded, Unavailable
from holdfast.model.event import Event

_CLOSING = 4  # messages that a batch may carry besides events: the gate, and the marks of several batches
_PATIENT = 2  # backoff does not grow beyond this turn: the one that waits longest would wait ever longer
_LOOK_FIRST = 200  # from here on a refused batch costs more than a look at the keys


@dataclass(slots=True)
class EventDraft:
    """One event to append, and the sequence that it got."""

    event: Event
    key: str
    digest: str
    expect: int = 0
    seq: int | None = None
    duplicate: bool = False


class BatchPublisher:
    """Appends to channels."""

    def __init__(
        self,
        store: NatsStore,
        entries: Entries,
        outcomes: PublishOutcomes,
        keys: IdempotencyKeys,
        backlogs: Backlogs,
    ) -> None:
        self._store, self._entries, self._outcomes = store, entries, outcomes
        self._keys, self._backlogs = keys, backlogs

    async def append(self, channel: str, events: Sequence[Event], delivery: Delivery) -> list[EventDraft]:
        """Append what is new. Returns a draft for each event in order, repeats included."""
        drafts = [EventDraft(event, subjects.key(channel, event.source, event.id), "") for event in events]
        firsts = _firsts(channel, drafts)
        await self._store.recognise()
        if len(firsts) >= _LOOK_FIRST:
            await self._look(channel, firsts.values())
        for turn in range(TRIES):
            fresh = [draft for draft in firsts.values() if draft.seq is None]
            if not fresh:
                break
            await self._store.ensure_channel(channel)
            try:
                await self._append(channel, fresh, delivery)
                break
            except Stale:
                await backoff(min(turn, _PATIENT))
                await self._look(channel, firsts.values())
            except Overloaded:
                # A publisher whose receipt was lost asks again: its own events may have filled the consumer.
                await self._look(channel, firsts.values())
                if any(draft.seq is None for draft in firsts.values()):
                    raise
        else:
            raise Unavailable(f"channel {channel!r} is published to by too many at once; try again")
        if any(not draft.duplicate for draft in firsts.values()):
            await self._store.wake([channel])
        for draft in drafts:
            first = firsts[draft.key]
            if draft is not first:
                draft.seq, draft.duplicate = first.seq, True
        return drafts

    async def _look(self, channel: str, drafts: Iterable[EventDraft]) -> None:
        """Find out which events there are already; the same id with other content refuses them all."""
        by_key = {draft.key: draft for draft in drafts if draft.seq is None}
        conflicts = []
        for key, known in (await self._keys.find(channel, list(by_key))).items():
            draft = by_key[key]
            draft.expect = known.revision
            if known.seq is not None:
                if known.digest not in ("", draft.digest):
                    conflicts.append(draft.event.id)
                draft.seq, draft.duplicate = known.seq, True
        if conflicts:
            raise IdConflict(channel, conflicts)

    async def _gate(self, channel: str, ours: int = 0) -> list[BatchMessage]:
        """Refuse when the channel or a bounded consumer is full; for the latter, exclude other publishes.

        `ours`: events of this publish that are in the log. Whoever needs long for this loses to all others.
        """
        await self._store.mirror.sync_registry()
        if channel in self._store.registry.full:
            raise Overloaded(
                f"channel {channel!r} is full by its max_bytes policy; let its consumers catch up so that it "
                "can be trimmed, or raise max_bytes"
            )
        bounded = self._store.registry.bounded.get(channel)
        if not bounded:
            return []
        revision, depths = await self._depths(channel, bounded)
        closer = [each for each in bounded if depths[each.ref] - ours >= _most(each)]
        if closer:
            depths |= await self._close_look(closer)
        for member in closer:
            if depths[member.ref] >= _most(member):
                raise Overloaded(
                    f"consumer {member.name} of channel {channel} holds {depths[member.ref]} live jobs; its "
                    f"max_depth is {member.policy.max_depth}; publish again once it has caught up"
                )
        return [state(subjects.gate(channel), b"", revision)]

    async def _depths(self, channel: str, bounded: Sequence[Member]) -> tuple[int, dict[str, int]]:
        """Return the revision of the gate, and how many live jobs each consumer has at most: its counts, its
        leases as they were made, and all that follows its frontier."""
        places = (
            place
            for each in bounded
            for place in (subjects.frontier(each.ref), subjects.count(each.ref, "*"))
        )
        gate, revision = subjects.gate(channel), 0
        depths, at = Counter({each.ref: 0 for each in bounded}), dict[str, int]()
        for message in await self._store.connection.last([gate, *places]):
            if message.subject == gate:
                revision = message.seq
            elif message.data:
                ref, kind = message.subject.split(".")[3:5]
                if kind == "frontier":
                    found = frontiers.decode(message.data, message.seq)
                    depths[ref] += sum(lease.count for lease in found.leases)
                    at[ref] = found.at
                else:
                    depths[ref] += live(Counter(orjson.loads(message.data)))
        behind = await asyncio.gather(*(self._entries.count(channel, seq) for seq in at.values()))
        depths.update(dict(zip(at, behind, strict=True)))
        return revision, dict(depths)

    async def _close_look(self, members: Sequence[Member]) -> dict[str, int]:
        """Return how many live jobs some consumers have."""
        await asyncio.gather(*(self._store.mirror.sync(each.ref) for each in members))
        found = await self._backlogs.of(members)
        return {each.ref: live(found[each.ref].states) if each.ref in found else 0 for each in members}

    async def _append(self, channel: str, drafts: Sequence[EventDraft], delivery: Delivery) -> None:
        client = await self._store.connection.client()
        groups = [_messages(channel, draft, delivery, client.max_payload) for draft in drafts]
        await self._store.capacity.use([message for group in groups for message in group])
        batches = list(_batches(groups))
        gate = await self._gate(channel)  # last: a large batch, which takes long, must not lose by it
        if len(batches) == 1:
            await self._send(drafts, groups, gate)
            return
        publish = secrets.token_hex(8)
        named = delivery._replace(publish=publish)
        opening = [begin_of(channel, publish)]
        rest, sent = iter(drafts), False
        try:
            for number, size in enumerate(batches, start=1):
                part = list(islice(rest, size))
                groups = [_messages(channel, draft, named, client.max_payload) for draft in part]
                await self._send(part, groups, opening if number == 1 else [])
            await self._finish(channel, len(drafts), end_of(channel, publish, COMMITTED))
            sent = True
        finally:
            if not sent:
                for draft in drafts:
                    draft.seq = None
                await self._outcomes.abort(channel, publish)

    async def _finish(self, channel: str, sent: int, closing: list[BatchMessage]) -> None:
        """The last batch, which is small: as long as the publish is under way, it holds up whatever comes
        behind it. Where others publish meanwhile it alone is repeated, if the bound allows it."""
        before: list[BatchMessage] | None = None
        while (gate := await self._gate(channel, sent)) != before:
            try:
                await self._store.commit([*gate, *closing])
                return
            except Stale:
                before = gate
        raise Stale("the publish was given up by somebody else")

    async def _send(
        self,
        drafts: Sequence[EventDraft],
        groups: Sequence[list[BatchMessage]],
        before: list[BatchMessage],
    ) -> None:
        messages = [*before, *(message for group in groups for message in group)]
        seq = await self._store.commit(messages) - len(messages) + len(before)
        for draft, group in zip(drafts, groups, strict=True):
            seq += len(group)
            draft.seq = seq - group[-1].subject.startswith(subjects.SPECIALS)


def _firsts(channel: str, drafts: Sequence[EventDraft]) -> dict[str, EventDraft]:
    """Return the first event of each id. Raises `IdConflict` where another one has other content."""
    firsts: dict[str, EventDraft] = {}
    conflicts = []
    for draft in drafts:
        draft.digest = codec.content_hash(draft.event)
        first = firsts.setdefault(draft.key, draft)
        if first.digest != draft.digest:
            conflicts.append(draft.event.id)
    if conflicts:
        raise IdConflict(channel, conflicts)
    return firsts


def _messages(channel: str, draft: EventDraft, delivery: Delivery, max_payload: int) -> list[BatchMessage]:
    """Return an event behind its key: what a dying server kept of a batch never becomes a second event."""
    messages = codec.encode(channel, draft.event, delivery, max_payload)
    key = key_message(draft.key, draft.digest, len(messages), delivery.publish, draft.expect)
    return [key, *messages, *_mark(channel, messages[-1])]


def _mark(channel: str, event: BatchMessage) -> list[BatchMessage]:
    """Return the mark by which claims find an event that is to come before others, or later."""
    names = (subjects.DUE, subjects.PRIORITY, subjects.PUBLISH)
    headers = {name: event.headers[name] for name in names if name in event.headers}
    special = subjects.DUE in headers or subjects.PRIORITY in headers
    return [BatchMessage(subjects.special(channel), b"", headers)] if special else []


def _most(member: Member) -> int:
    return member.policy.max_depth or 0


def _batches(groups: Sequence[list[BatchMessage]]) -> Iterable[int]:
    """Yield how many events go into each batch."""
    events = messages = size = 0
    for group in groups:
        more = sum(len(message.data) for message in group)
        if events and (messages + len(group) > MOST - _CLOSING or size + more > MOST_BYTES):
            yield events
            events = messages = size = 0
        events, messages, size = events + 1, messages + len(group), size + more
    yield events
