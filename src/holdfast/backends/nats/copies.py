"""Copies of the events of jobs that die: for the dead letter itself, and for the dead-letter channel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from holdfast.backends.nats import codec, subjects
from holdfast.backends.nats.batch import Message
from holdfast.backends.nats.codec import Delivery
from holdfast.backends.nats.entries import Entries
from holdfast.backends.nats.keys import key_message
from holdfast.backends.nats.records import Record
from holdfast.backends.nats.registry import Member
from holdfast.backends.nats.store import Store
from holdfast.model.event import Event


class Copied(NamedTuple):
    """A dead letter that knows its own copy of the event, and the messages that go with it."""

    record: Record
    messages: list[Message]

    @property
    def size(self) -> int:
        return sum(len(message.data) for message in self.messages)


class Copies:
    """Makes copies, for many at once."""

    def __init__(self, store: Store, entries: Entries) -> None:
        self._store, self._entries = store, entries

    async def of(self, member: Member, buried: Sequence[Record]) -> dict[int, Copied]:
        """By the sequence of the event; without messages where that is gone."""
        if not buried:
            return {}
        own = await self._events(member, [replace(record, patch="") for record in buried])
        patched = [record for record in buried if record.patch and member.policy.dead_letter]
        died_with = own | await self._events(member, patched)
        most = (await self._store.link.client()).max_payload
        return {
            record.seq: _copied(member, record, own.get(record.seq), died_with.get(record.seq), most)
            for record in buried
        }

    async def _events(self, member: Member, jobs: Sequence[Record]) -> dict[int, Event | None]:
        found = await self._entries.of_jobs(member.channel, jobs)
        return dict(zip(found, await self._entries.events(found.values()), strict=True))


def _copied(
    member: Member, record: Record, own: Event | None, died_with: Event | None, max_payload: int
) -> Copied:
    """The dead letter keeps the event's own data, the dead-letter channel gets what the job died with."""
    target, copies = member.policy.dead_letter, list[Message]()
    if own is not None and not record.copy:
        kept = subjects.copy(member.channel, record.source, record.event, record.ref, record.seq)
        record = replace(record, copy=kept)
        copies += codec.encode(kept, own, Delivery(), max_payload)
    if died_with is not None and target is not None:
        copies += _told(target, member, record, died_with, max_payload)
    return Copied(record, copies)


def _told(target: str, member: Member, record: Record, event: Event, max_payload: int) -> list[Message]:
    """The event with its story in headers, for the dead-letter channel."""
    story = {
        "channel": member.channel,
        "consumer": member.name,
        "source": event.source,
        "id": event.id,
        "reason": record.reason or "",
        "error": record.errors[-1]["error"] if record.errors else "",
    }
    copy = Event(
        event.data,
        f"{event.id}#{record.token}",
        f"{member.channel}/{member.name}",
        event.type,
        event.key,
        event.time,
        {**event.headers, **{f"holdfast-{name}": value for name, value in story.items()}},
    )
    messages = codec.encode(target, copy, Delivery(), max_payload)
    key = subjects.key(target, copy.source, copy.id)
    return [key_message(key, codec.content_hash(copy), len(messages)), *messages]
