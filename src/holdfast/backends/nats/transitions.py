"""Transitions: decisions about jobs, each checked against the newest record and committed with its fence."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from holdfast.backends.nats import subjects
from holdfast.backends.nats.batch import Stale
from holdfast.backends.nats.copies import Copied, Copies
from holdfast.backends.nats.edit import Edit
from holdfast.backends.nats.entries import Entries
from holdfast.backends.nats.records import Record
from holdfast.backends.nats.registry import Member
from holdfast.backends.nats.store import TRIES, Store
from holdfast.model.errors import Unavailable
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


_Turn = tuple[_Asked, int, Step]
_Todo = list[_Turn]
_ENDING = 4  # messages that the end of a job takes at most, besides copies of its event
_AT_ONCE = 250  # burials that may fit into one batch


class Transitions:
    """Applies steps, consumer by consumer. What comes while a batch is under way travels in the next one.

    Whoever lost a race waits without the consumer's lock, and holds up nobody who comes later.
    """

    def __init__(self, store: Store, entries: Entries) -> None:
        self._store, self._copies = store, Copies(store, entries)
        self._asked: defaultdict[str, list[_Asked]] = defaultdict(list)
        self._drains: set[asyncio.Task[None]] = set()

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
        if len(self._asked[ref]) == 1:
            # A task of its own: a caller that is cancelled must not take the others' steps with it.
            drain = asyncio.create_task(self._drain(ref))
            self._drains.add(drain)
            drain.add_done_callback(self._drains.discard)
        return await asked.answer

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
                    await self._store.look_again(stale)
        except Exception as error:
            _tell(group, error)
        else:
            _tell(group, None)

    async def _apply(self, ref: str, todo: _Todo) -> _Todo:
        """One batch, for who holds the consumer's lock; answers what is left. Raises `Stale`."""
        member = self._store.registry.members.get(ref)
        if member is None:
            return []
        edit, taken, rest = await self._plan(member, todo)
        if taken:
            await self._store.commit(edit.messages())
        for asked, place in taken:
            asked.accepted.append(place)
        return rest

    async def _plan(self, member: Member, todo: _Todo) -> tuple[Edit, list[tuple[_Asked, int]], _Todo]:
        """As many accepted steps as one batch takes, and what is left for the next one."""
        edit, taken = self._store.edit(member.ref), list[tuple[_Asked, int]]()
        decided, rest = self._decide(todo)
        buried = [new for _, _, new in decided if new.state is State.DEAD]
        copies = await self._copies.of(member, buried[:_AT_ONCE])
        for turn, old, new in decided:
            dead = copies.get(new.seq) if new.state is State.DEAD else Copied(new, [])
            if dead is None or not edit.has_room(len(dead.messages) + _ENDING, dead.size):
                rest.append(turn)
                continue
            if new.state in LIVE:
                edit.replace(old, new)
            else:
                edit.also(dead.messages)
                edit.end(old, dead.record)
            taken.append(turn[:2])
        return edit, taken, rest

    def _decide(self, todo: _Todo) -> tuple[list[tuple[_Turn, Record, Record]], _Todo]:
        """What each step makes of its job. A second step of the same job waits for the first one's batch."""
        queues, seen = self._store.mirror.queues, set[int]()
        decided, rest = list[tuple[_Turn, Record, Record]](), _Todo()
        for turn in todo:
            asked, _, step = turn
            record = queues.job(step.ref, step.seq)
            if step.seq in seen:
                rest.append(turn)
            elif record is not None and step.accepts(record, asked.now):
                decided.append((turn, record, step.change(record, asked.now)))
                seen.add(step.seq)
        return decided, rest

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
