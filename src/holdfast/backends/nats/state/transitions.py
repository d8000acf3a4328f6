"""Transitions: decisions about jobs, each checked against the newest record and committed with its fence."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from holdfast.backends.nats.state.batch_builder import BatchBuilder
from holdfast.backends.nats.state.entries import Entries
from holdfast.backends.nats.state.job_records import StoredJob
from holdfast.backends.nats.state.jobs import Jobs
from holdfast.backends.nats.state.lease_records import LeaseRecords
from holdfast.backends.nats.state.publish_outcome import key_message
from holdfast.backends.nats.state.registry import Member
from holdfast.backends.nats.state.store import TRIES, NatsStore
from holdfast.backends.nats.wire import codec, subjects
from holdfast.backends.nats.wire.batches import BatchMessage, Stale
from holdfast.backends.nats.wire.codec import Delivery
from holdfast.model.errors import Unavailable
from holdfast.model.event import Event
from holdfast.model.job import Failure, Reason
from holdfast.model.states import LIVE, State


@dataclass(frozen=True, slots=True)
class TransitionStep:
    """One job's next state, if the record still allows it. Both functions take the record and the time."""

    ref: str
    seq: int
    accepts: Callable[[StoredJob, int], bool]
    change: Callable[[StoredJob, int], StoredJob]


@dataclass(slots=True)
class _Asked:
    """Steps of one caller for one consumer, and which of them were accepted."""

    steps: list[tuple[int, TransitionStep]]
    now: int
    done: asyncio.Future[list[int]]
    accepted: list[int] = field(default_factory=list)


_Turn = tuple[_Asked, int, TransitionStep]
_Todo = list[_Turn]
_ENDING = 4  # messages that the end of a job takes at most, besides copies of its event
_AT_ONCE = 250  # deaths that may fit into one batch


class _Copied(NamedTuple):
    """A dead letter that knows its own copy of the event, and the messages that go with it."""

    record: StoredJob
    messages: list[BatchMessage]

    @property
    def size(self) -> int:
        return sum(len(message.data) for message in self.messages)


class EventCopies:
    """Copies the events of jobs that die: for the dead letter itself, and for the dead-letter channel."""

    def __init__(self, store: NatsStore, entries: Entries) -> None:
        self._store, self._entries = store, entries

    async def of(self, member: Member, buried: Sequence[StoredJob]) -> dict[int, _Copied]:
        """Return copies by the sequence of the event, without messages where that is gone."""
        if not buried:
            return {}
        own = await self._events(member, [replace(record, patch="") for record in buried])
        patched = [record for record in buried if record.patch and member.policy.dead_letter]
        died_with = own | await self._events(member, patched)
        most = (await self._store.connection.client()).max_payload
        return {
            record.seq: _copied(member, record, own.get(record.seq), died_with.get(record.seq), most)
            for record in buried
        }

    async def _events(self, member: Member, jobs: Sequence[StoredJob]) -> dict[int, Event | None]:
        found = await self._entries.of_jobs(member.channel, jobs)
        return dict(zip(found, await self._entries.events(found.values()), strict=True))


def _copied(
    member: Member, record: StoredJob, own: Event | None, died_with: Event | None, max_payload: int
) -> _Copied:
    """The dead letter keeps the event's own data, the dead-letter channel gets what the job died with."""
    target, copies = member.policy.dead_letter, list[BatchMessage]()
    if own is not None and not record.copy:
        kept = subjects.copy(member.channel, record.source, record.event, record.ref, record.seq)
        record = replace(record, copy=kept)
        copies += codec.encode(kept, own, Delivery(), max_payload)
    if died_with is not None and target is not None:
        copies += _for_channel(target, member, record, died_with, max_payload)
    return _Copied(record, copies)


def _for_channel(
    target: str, member: Member, record: StoredJob, event: Event, max_payload: int
) -> list[BatchMessage]:
    """Return the event for the dead-letter channel, with where it comes from in headers."""
    origin = {
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
        {**event.headers, **{f"holdfast-{name}": value for name, value in origin.items()}},
    )
    messages = codec.encode(target, copy, Delivery(), max_payload)
    key = subjects.key(target, copy.source, copy.id)
    return [key_message(key, codec.content_hash(copy), len(messages)), *messages]


class Transitions:
    """Applies steps, consumer by consumer. What comes while a batch is under way travels in the next one.

    Whoever lost a race waits without the consumer's lock, and holds up nobody who comes later.
    """

    def __init__(self, store: NatsStore, entries: Entries, leases: LeaseRecords, jobs: Jobs) -> None:
        self._store, self._leases, self._jobs = store, leases, jobs
        self._copies = EventCopies(store, entries)
        self._asked: defaultdict[str, list[_Asked]] = defaultdict(list)
        self._drains: set[asyncio.Task[None]] = set()

    async def apply(self, steps: Sequence[TransitionStep | None], now: int) -> list[bool]:
        """Return whether each step was accepted; None is a job of nobody. The mirror is as of `now`."""
        groups: defaultdict[str, list[tuple[int, TransitionStep]]] = defaultdict(list)
        for place, step in enumerate(steps):
            if step is not None:
                groups[step.ref].append((place, step))
        found = await asyncio.gather(*(self._ask(ref, group, now) for ref, group in groups.items()))
        accepted = {place for places in found for place in places}
        return [place in accepted for place in range(len(steps))]

    async def _ask(self, ref: str, steps: list[tuple[int, TransitionStep]], now: int) -> list[int]:
        asked = _Asked(steps, now, asyncio.get_running_loop().create_future())
        self._asked[ref].append(asked)
        if len(self._asked[ref]) == 1:
            # A task of its own: a caller that is cancelled must not take the others' steps with it.
            drain = asyncio.create_task(self._drain(ref))
            self._drains.add(drain)
            drain.add_done_callback(self._drains.discard)
        return await asked.done

    async def _drain(self, ref: str) -> None:
        group, todo, stale = list[_Asked](), _Todo(), 0
        try:
            while todo or not group:
                try:
                    async with self._store.lock(ref):
                        if not group:
                            group = self._asked.pop(ref)
                            todo = [(each, *step) for each in group for step in each.steps]
                        todo = await self._apply(ref, todo)
                except Stale:
                    stale += 1
                    if stale > TRIES:
                        raise Unavailable("the jobs of a consumer change too often; try again") from None
                    await self._store.look_again(stale, ref)
                    await self._look_at_leases(ref, todo)
        except Exception as error:
            _tell(group, error)
        else:
            _tell(group, None)

    async def _apply(self, ref: str, todo: _Todo) -> _Todo:
        """Commit one batch under the consumer's lock; returns what is left. Raises `Stale`."""
        member = self._store.registry.members.get(ref)
        if member is None:
            return []
        async with self._alone(ref, todo):
            batch, taken, rest = await self._plan(member, todo)
            await batch.commit()
        target = member.policy.dead_letter
        if target is not None and any(each.subject == target for each in batch.messages):
            await self._store.wake([target])
        for asked, place in taken:
            asked.accepted.append(place)
        return rest

    @asynccontextmanager
    async def _alone(self, ref: str, todo: _Todo) -> AsyncIterator[None]:
        """Keep single changes of the leases that are concerned from coming in between."""
        frontier = self._store.mirror.frontier(ref)
        holders = (frontier.holder(step.seq) for _, _, step in todo)
        async with AsyncExitStack() as held:
            for token in sorted({lease.token for lease in holders if lease is not None}):
                await held.enter_async_context(self._leases.lock(ref, token))
            yield

    async def _look_at_leases(self, ref: str, todo: _Todo) -> None:
        frontier = self._store.mirror.frontiers.get(ref)
        if frontier is not None:
            holders = (frontier.holder(step.seq) for _, _, step in todo)
            leases = {lease.token: lease for lease in holders if lease is not None}
            await self._leases.read((ref, lease) for lease in leases.values())

    async def _plan(
        self, member: Member, todo: _Todo
    ) -> tuple[BatchBuilder, list[tuple[_Asked, int]], _Todo]:
        """Return as many accepted steps as one batch takes, and what is left for the next one."""
        batch, decided, rest = await self._decided(member, todo)
        if len(decided) + len(rest) < len(todo):
            # What is accepted is checked by the server, what is refused by nobody: and since these steps were
            # asked for the mirror may have begun anew, as of a moment before a claim of our own.
            await self._store.mirror.sync(member.ref)
            batch, decided, rest = await self._decided(member, todo)
        taken = list[tuple[_Asked, int]]()
        buried = [new for _, _, new in decided if new.state is State.DEAD]
        copies = await self._copies.of(member, buried[:_AT_ONCE])
        for turn, old, new in decided:
            dead = copies.get(new.seq) if new.state is State.DEAD else _Copied(new, [])
            if dead is None or not batch.has_room(len(dead.messages) + _ENDING, dead.size):
                rest.append(turn)
                continue
            if new.state in LIVE:
                batch.replace(old, new)
            else:
                batch.also(dead.messages)
                batch.end(old, dead.record)
            taken.append(turn[:2])
        return batch, taken, rest

    async def _decided(
        self, member: Member, todo: _Todo
    ) -> tuple[BatchBuilder, list[tuple[_Turn, StoredJob, StoredJob]], _Todo]:
        """Return what each step makes of its job as the mirror has it, with a batch that is about that."""
        batch = BatchBuilder(self._store, self._leases, member.ref)
        live = await self._jobs.live(member, {step.seq for _, _, step in todo})
        return batch, *self._decide(todo, live)

    def _decide(
        self, todo: _Todo, live: Mapping[int, StoredJob]
    ) -> tuple[list[tuple[_Turn, StoredJob, StoredJob]], _Todo]:
        """Return what each step makes of its job. A second step of a job waits for the first one's batch."""
        seen = set[int]()
        decided, rest = list[tuple[_Turn, StoredJob, StoredJob]](), _Todo()
        for turn in todo:
            asked, _, step = turn
            record = live.get(step.seq)
            if step.seq in seen:
                rest.append(turn)
            elif record is not None and step.accepts(record, asked.now):
                decided.append((turn, record, step.change(record, asked.now)))
                seen.add(step.seq)
        return decided, rest


def _tell(group: list[_Asked], error: Exception | None) -> None:
    for asked in group:
        if asked.done.done():
            continue
        if error is None:
            asked.done.set_result(asked.accepted)
        else:
            asked.done.set_exception(error)


def buried(
    member: Member | None, reason: Reason, failure: Failure, *, overdue: bool = False
) -> Callable[[StoredJob, int], StoredJob]:
    """Return the change to dead, or discarded. `overdue`: the attempt ended without a result."""
    discard = member is not None and member.policy.on_dead == "discard"

    def change(record: StoredJob, now: int) -> StoredJob:
        return record.at_end(
            State.DISCARDED if discard else State.DEAD,
            now,
            reason=reason.value,
            errors=record.failed(failure, now),
            attempts=record.attempts - overdue,
            abandonments=record.abandonments + overdue,
        )

    return change
