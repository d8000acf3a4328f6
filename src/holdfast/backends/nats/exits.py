"""Exits from the dead: revived or purged by their ids."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

from holdfast import failpoints
from holdfast.backends.nats import codec, subjects
from holdfast.backends.nats.batch import Message, Stale
from holdfast.backends.nats.codec import Delivery
from holdfast.backends.nats.dead import letters
from holdfast.backends.nats.edit import Edit
from holdfast.backends.nats.entries import Entries
from holdfast.backends.nats.records import Record, job_number
from holdfast.backends.nats.registry import Member
from holdfast.backends.nats.store import TRIES, Store
from holdfast.backends.nats.transitions import Transitions
from holdfast.model.errors import Unavailable
from holdfast.model.event import Event
from holdfast.model.job import State

_Plan = Callable[[Edit, Member, Record, int], Awaitable[bool]]
"""Add one dead letter's change to a batch, unless that is full."""
_AT_ONCE = 320
_MESSAGES = 5  # that one dead letter takes at most, besides its patch


class Exits:
    """Moves dead letters by id, as many in one atomic batch as the server takes.

    A batch has 1,000 messages, and a dead letter takes three of them to be revived and up to five to be
    purged, so that a thousand take several batches. Each is whole or not at all; a caller that is told
    `Unavailable` after the first may ask again, and what had moved by then is answered with False.
    """

    def __init__(self, store: Store, entries: Entries, transitions: Transitions) -> None:
        self._store, self._entries, self._transitions = store, entries, transitions

    async def revive(
        self, channel: str, consumer: str, job_ids: Sequence[str], data: bytes | None
    ) -> list[bool]:
        """dead → ready at the tail, with other data where there is some."""

        async def plan(edit: Edit, member: Member, record: Record, now: int) -> bool:
            new = record.anew(now, member.policy.expires_after)
            patch: list[Message] = []
            if data is not None:
                new = replace(new, patch=subjects.patch(new.ref, new.seq, new.token))
                patch = await self._patched(member, new.patch, record, data)
            if not edit.has_room(len(patch) + _MESSAGES, sum(len(each.data) for each in patch)):
                return False
            edit.also(patch)
            edit.revive(record, new)
            return True

        moved = await self._move(channel, consumer, job_ids, plan)
        failpoints.hit("dead.after_revive")
        if any(moved):
            await self._transitions.wake({channel})
        return moved

    async def _patched(self, member: Member, place: str, record: Record, data: bytes) -> list[Message]:
        """The event with other data; one that nobody has any more is made of what the record knows of it."""
        event = await self._entries.of_job(member.channel, record)
        patched = (event or Event(b"", record.event, record.source))._replace(data=data)
        most = (await self._store.link.client()).max_payload
        return codec.encode(place, patched, Delivery(), most)

    async def purge(self, channel: str, consumer: str, job_ids: Sequence[str]) -> list[bool]:
        """dead → purged."""

        async def plan(edit: Edit, member: Member, record: Record, now: int) -> bool:
            if edit.has_room(_MESSAGES):
                edit.purge(record, replace(record, state=State.PURGED, ended=now))
                return True
            return False

        moved = await self._move(channel, consumer, job_ids, plan)
        failpoints.hit("dead.after_purge")
        return moved

    async def _move(self, channel: str, consumer: str, job_ids: Sequence[str], plan: _Plan) -> list[bool]:
        todo = list(dict.fromkeys(number for each in job_ids if (number := job_number(each))))
        moved, stale = set[int](), 0
        while todo:
            now = await self._store.fresh()
            member = self._store.registry.by_name.get((channel, consumer))
            if member is None:
                break
            try:
                async with self._store.lock(member.ref):
                    taken, todo = await self._step(member, todo, plan, now)
            except Stale:
                stale += 1
                if stale > TRIES:
                    told = f"the dead letters of {consumer!r} change too often; try again"
                    raise Unavailable(told) from None
                continue
            moved |= taken
            failpoints.hit("dead.mid_move")
        return [job_number(each) in moved for each in job_ids]

    async def _step(
        self, member: Member, todo: list[int], plan: _Plan, now: int
    ) -> tuple[set[int], list[int]]:
        """One batch: which ones moved, and which were not looked at yet."""
        lane = self._store.mirror.revision(subjects.lane(member.ref))
        asked, taken = todo[:_AT_ONCE], set[int]()
        found = await letters(self._store, ((member.ref, seq) for seq in asked))
        edit = self._store.edit(member.ref)
        for place, seq in enumerate(asked):
            record = found.get((member.ref, seq))
            if record is None:
                continue
            if not await plan(edit, member, record, now):
                asked = asked[:place]
                break
            taken.add(seq)
        if taken:
            if member.policy.ordered:
                edit.raise_lane(lane)
            await self._store.commit(edit.messages())
        return taken, todo[len(asked) :]
