"""The world of a round: one channel with jobs in every state, in plain values that go to other processes."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from holdfast.contracts import WAITING_ONLY, Applied, Backend, Consumer
from holdfast.model.decide import Action
from holdfast.model.event import Event
from holdfast.model.job import Burial, Cancellation, Job, Reason
from holdfast.model.policy import Policy
from holdfast.model.upkeep import Lock
from holdfast_chaos.history import Call, History, calls_of
from holdfast_chaos.recorder import Recorded, RecordedChannels, RecordedLeases, RecordedNoun, item
from kit import BOOM

CONSUMER, READER, SIDE_READER = "main", "reader", "side"
LEASE, EXPIRES, SOON = timedelta(minutes=5), timedelta(minutes=10), timedelta(minutes=2)
HIGH, LOW = 9, -5
FEW, SOME = 4, 8
_OPEN = 0.002


@dataclass(frozen=True)
class Kind:
    """What sort of consumer and of jobs a round has."""

    ordered: bool
    bounded: bool
    bulk: bool

    def __str__(self) -> str:
        words = [
            "ordered" if self.ordered else "unordered",
            "bounded" if self.bounded else "unbounded",
            "bulk" if self.bulk else "single",
        ]
        return " ".join(words)


KINDS = [Kind(*flags) for flags in itertools.product([False, True], repeat=3)]


@dataclass(frozen=True)
class World:
    """What the verbs of a round act on. All sides go through these lists in the same order, and so meet."""

    channel: str
    kind: Kind
    policy: Policy
    bulk: int
    """How many events make a bulk publish on this store."""
    lock: Lock
    early: datetime
    """After the first events were finished, before anything else was published."""
    now: datetime
    """When the round begins."""
    waiting: list[str] = field(default_factory=list)
    """Event ids of jobs that are ready."""
    scheduled: list[str] = field(default_factory=list)
    """Job ids are unknown: event ids of jobs that wait for their time."""
    leased: list[Job] = field(default_factory=list)
    overdue: list[Job] = field(default_factory=list)
    dead: list[Job] = field(default_factory=list)


class Notes(History):
    """A history in memory."""

    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []
        self._numbers = itertools.count(1)

    def _note(self, line: dict[str, Any]) -> None:
        self.lines.append(line)

    def calls(self, process: str) -> list[Call]:
        return calls_of(process, self.lines)


class WatchedLeases(RecordedLeases):
    async def cancel(
        self,
        channel: str,
        source: str,
        event_id: str,
        consumer: str | None,
        how: Cancellation = WAITING_ONLY,
    ) -> int:
        call = self._inner.leases.cancel(channel, source, event_id, consumer, how)
        return await self._note_one("cancel", {"channel": channel, "id": event_id}, call)

    async def complete_on(self, connection: Any, job: Job, commits: bool) -> None:
        """Complete a job in a transaction of the caller's, which stays open for a moment."""

        async def ask() -> bool:
            try:
                await self._inner.leases.complete_within(job, connection)
                await asyncio.sleep(_OPEN)
            except BaseException:
                await connection.rollback()
                raise
            await (connection.commit() if commits else connection.rollback())
            return True

        await self._note_one("complete", item(job), ask()) if commits else await ask()

    async def complete_in_block(self, job: Job, commits: bool) -> None:
        """Complete a job in a transaction of its own."""

        async def ask() -> bool:
            with suppress(_Undone):
                async with self._inner.leases.transaction(job, lambda: None):
                    await asyncio.sleep(_OPEN)
                    if not commits:
                        raise _Undone
            return True

        await self._note_one("complete", item(job), ask()) if commits else await ask()


class _Undone(Exception):
    """Raised in a block."""


class WatchedChannels(RecordedChannels):
    async def subscribe(
        self, channel: str, consumer: str, policy: Policy, *given: Any, **at: Any
    ) -> Consumer:
        item = {"channel": channel, "consumer": consumer, "start": str(given[0] if given else "latest")}
        call = self._inner.channels.subscribe(channel, consumer, policy, *given, **at)
        return await self._note_one("subscribe", item, call, lambda _: True)


class WatchedLifecycle(RecordedNoun):
    async def apply(self, actions: Sequence[Action]) -> Applied:
        item = {"moves": [str(action.move) for action in actions]}
        call = self._inner.lifecycle.apply(actions)
        return await self._note_one("apply", item, call, lambda applied: applied.total)


class Watched(Recorded):
    """A recorded backend that also notes the moves of the lifecycle, and where a consumer starts."""

    def __init__(self, inner: Backend, history: History) -> None:
        super().__init__(inner, history)
        self.leases = WatchedLeases("leases", inner, history)
        self.channels = WatchedChannels("channels", inner, history)
        self.lifecycle = WatchedLifecycle("lifecycle", inner, history)

    @property
    def inner(self) -> Backend:
        return self._inner

    def archived(self, channel: str, consumer: str, ids: list[str]) -> None:
        """A reader has moved its cursor over these."""
        items = [{"channel": channel, "consumer": consumer, "id": each} for each in ids]
        self._history.happened("archived", *items)


async def prepare(backend: Watched, channel: str, kind: Kind, bulk: int, *, expiring: bool) -> World:
    """A channel with a consumer whose jobs are done, expired, overdue, dead, leased, scheduled and ready."""
    size = bulk if kind.bulk else 3 * SOME
    # A consumer whose jobs expire looks at each of them: only where expiry is what is tried.
    expires = EXPIRES if expiring or not kind.bulk else None
    bound = size + 10 * SOME if kind.bounded else None
    policy = Policy.of(lease=LEASE, ordered=kind.ordered, max_depth=bound, expires_after=expires)
    await backend.channels.subscribe(channel, CONSUMER, policy)
    await backend.cursors.attach(channel, READER)
    await _finish(backend, channel)
    early, lock = (
        await backend.now(),
        await backend.locks.acquire(f"{channel}.sweeper", "sweeper", timedelta(days=1)),
    )
    assert lock is not None
    if expires:
        await backend.log.publish(channel, _events("expired", FEW), priority=LOW)
    await backend.advance(LEASE)
    begun = await backend.now()
    due = _events("due", FEW)
    await backend.log.publish(channel, due, at=begun + timedelta(seconds=1))
    # Jobs of a bulk round are taken from the log itself, those of others one by one before it.
    first = 0 if kind.bulk else HIGH
    await backend.log.publish(channel, [*_events("overdue", FEW), *_events("dead", SOME)], priority=first)
    claimed = await backend.leases.claim(channel, CONSUMER, FEW + SOME, "before")
    dead = [job for job in claimed if job.event.id.startswith("dead")]
    overdue = [job for job in claimed if job.event.id.startswith("overdue")]
    assert len(dead) == SOME
    assert len(overdue) == FEW
    assert all(await backend.leases.bury([Burial(job, Reason.TERMINAL, BOOM) for job in dead]))
    await backend.advance(LEASE + timedelta(seconds=30))
    await backend.log.publish(channel, _events("leased", SOME), priority=first)
    leased = await backend.leases.claim(channel, CONSUMER, SOME, "before")
    assert len(leased) == SOME
    now = await backend.now()
    future = _events("future", FEW)
    await backend.log.publish(channel, future, at=now + SOON)
    # The same keys again: whoever frees a key, or loses it, meets the next job of it.
    heads = [job.event.id for job in (*leased, *overdue, *dead)]
    keys = itertools.chain(heads, (f"pair{n // 2}" for n in itertools.count()))
    ready = [Event({"n": n}, f"ready{n}", key=key) for n, key in zip(range(size), keys, strict=False)]
    await backend.log.publish(channel, ready)
    return World(
        channel,
        kind,
        policy,
        bulk,
        lock,
        early,
        now,
        [event.id for event in ready],
        [event.id for event in (*due, *future)],
        sorted(leased, key=_name),
        sorted(overdue, key=_name),
        sorted(dead, key=_name),
    )


def _name(job: Job) -> str:
    return job.event.id


async def _finish(backend: Watched, channel: str) -> None:
    """Some events that everybody has behind him: only those can be trimmed and forgotten."""
    done = _events("done", FEW)
    receipts = await backend.log.publish(channel, done)
    jobs = await backend.leases.claim(channel, CONSUMER, FEW, "before")
    assert len(jobs) == FEW
    assert all(await backend.leases.complete(jobs))
    assert await backend.cursors.move(channel, READER, None, receipts[-1].position)
    backend.archived(channel, READER, [event.id for event in done])


def _events(name: str, count: int) -> list[Event]:
    """Each has a key of its own."""
    return [Event({"n": n}, f"{name}{n}", key=f"{name}{n}") for n in range(count)]
