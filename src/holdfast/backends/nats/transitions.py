"""Transitions: decisions about jobs, each checked against the newest record and committed with its fence."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from holdfast.backends.nats import codec, subjects
from holdfast.backends.nats.batch import Message, Stale
from holdfast.backends.nats.codec import Delivery
from holdfast.backends.nats.edit import Edit
from holdfast.backends.nats.entries import Entries
from holdfast.backends.nats.keys import key_message
from holdfast.backends.nats.records import Record
from holdfast.backends.nats.registry import Member
from holdfast.backends.nats.store import TRIES, Store
from holdfast.model.errors import Unavailable
from holdfast.model.event import Event
from holdfast.model.job import LIVE, State


@dataclass(frozen=True, slots=True)
class Step:
    """One job's next state, if the record still allows it. Both functions take the record and the time."""

    ref: str
    seq: int
    accepts: Callable[[Record, int], bool]
    change: Callable[[Record, int], Record]


@dataclass(slots=True)
class _Asked:
    """Steps of one caller for one consumer, and which of them were accepted."""

    steps: list[tuple[int, Step]]
    now: int
    answer: asyncio.Future[list[int]]
    accepted: list[int] = field(default_factory=list)


_Todo = list[tuple[_Asked, int, Step]]


class Transitions:
    """Applies steps, consumer by consumer. What comes while a batch is under way travels in the next one."""

    def __init__(self, store: Store, entries: Entries) -> None:
        self._store, self._entries = store, entries
        self._asked: defaultdict[str, list[_Asked]] = defaultdict(list)
        self._drains: dict[str, asyncio.Task[None]] = {}

    async def apply(self, steps: Sequence[Step | None], now: int) -> list[bool]:
        """Whether each step was accepted; None stands for a job of nobody. The mirror is as of `now`."""
        groups: defaultdict[str, list[tuple[int, Step]]] = defaultdict(list)
        for place, step in enumerate(steps):
            if step is not None:
                groups[step.ref].append((place, step))
        answers = await asyncio.gather(*(self._ask(ref, group, now) for ref, group in groups.items()))
        accepted = {place for places in answers for place in places}
        return [place in accepted for place in range(len(steps))]

    async def _ask(self, ref: str, steps: list[tuple[int, Step]], now: int) -> list[int]:
        asked = _Asked(steps, now, asyncio.get_running_loop().create_future())
        self._asked[ref].append(asked)
        if ref not in self._drains:
            # A task of its own: a caller that is cancelled must not take the others' steps with it.
            self._drains[ref] = asyncio.create_task(self._drain(ref))
        return await asked.answer

    async def _drain(self, ref: str) -> None:
        try:
            async with self._store.lock(ref):
                while group := self._asked.pop(ref, []):
                    try:
                        await self._apply(ref, [(each, *step) for each in group for step in each.steps])
                    except Exception as error:
                        _tell(group, error)
                    else:
                        _tell(group, None)
        finally:
            del self._drains[ref]

    async def _apply(self, ref: str, todo: _Todo) -> None:
        member, stale = self._store.registry.members.get(ref), 0
        while todo and member is not None:
            edit, taken, rest = await self._plan(member, todo)
            try:
                if taken:
                    await self._store.commit(edit.messages())
            except Stale:
                stale += 1
                if stale > TRIES:
                    raise Unavailable(f"the jobs of {member.name!r} change too often; try again") from None
                await self._store.look_again(stale)
            else:
                for asked, place in taken:
                    asked.accepted.append(place)
                todo = rest

    async def _plan(self, member: Member, todo: _Todo) -> tuple[Edit, list[tuple[_Asked, int]], _Todo]:
        """As many accepted steps as one batch takes, and what is left for the next one."""
        jobs, edit = self._store.mirror.queues.jobs, self._store.edit(member.ref)
        taken, rest, seen = list[tuple[_Asked, int]](), _Todo(), set[int]()
        for asked, place, step in todo:
            record = jobs.get((step.ref, step.seq))
            if step.seq in seen:
                rest.append((asked, place, step))
            elif record is not None and step.accepts(record, asked.now):
                changed = step.change(record, asked.now)
                copies: list[Message] = []
                if changed.state is State.DEAD:
                    changed, copies = await self._copies(member, changed)
                if taken and not edit.has_room(sum(len(copy.data) for copy in copies), len(copies) + 3):
                    rest.append((asked, place, step))
                    continue
                if changed.state in LIVE:
                    edit.replace(record, changed)
                else:
                    edit.also(copies)
                    edit.end(record, changed)
                seen.add(step.seq)
                taken.append((asked, place))
        return edit, taken, rest

    async def _copies(self, member: Member, record: Record) -> tuple[Record, list[Message]]:
        """The event for the dead letter itself, which outlives the log, and for the dead-letter channel."""
        found = await self._entries.of_jobs(member.channel, [record])
        event = (await self._entries.events(found.values()))[0] if found else None
        if event is None:
            return record, []
        most = (await self._store.link.client()).max_payload
        target, copies = member.policy.dead_letter, list[Message]()
        if not record.copy:
            kept = subjects.copy(member.channel, record.source, record.event, record.ref, record.seq)
            record = replace(record, copy=kept)
            copies += codec.encode(kept, event, Delivery(), most)
        if target is not None:
            copies += self._copy(target, member, record, event, most)
        return record, copies

    def _copy(
        self, target: str, member: Member, record: Record, event: Event, max_payload: int
    ) -> list[Message]:
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

    async def wake(self, channels: set[str]) -> None:
        """Tell listeners that older work may be ready. They may miss it."""
        client = await self._store.link.client()
        for channel in channels:
            await client.publish(subjects.wake(channel))


def _tell(group: list[_Asked], error: Exception | None) -> None:
    for asked in group:
        if asked.answer.done():
            continue
        if error is None:
            asked.answer.set_result(asked.accepted)
        else:
            asked.answer.set_exception(error)
