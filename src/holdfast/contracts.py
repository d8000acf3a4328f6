"""What a backend must do.

A backend owns one store and has one object for each noun: `backend.leases.claim(…)`. Verbs are transitions,
each atomic, each for a whole batch. Time is the store's. A verb that ends or prolongs a lease carries the
job's token and is accepted while no newer token was issued and the job is still leased; it returns, per job
in the order given, whether it was accepted. A refused one changed nothing. Whatever cannot be reached
raises `Unavailable`; for publish that means "unknown", and the caller repeats it with the same ids at the
same store.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal, Protocol

from holdfast.model.deadletters import (
    Cluster,
    DeadCount,
    DeadFilter,
    DeadLetter,
    DeadPage,
    Drift,
    Fold,
    Removal,
)
from holdfast.model.decide import Action, Due, Ref
from holdfast.model.event import Event, LogEntry, Receipt
from holdfast.model.job import Burial, Cancellation, Completion, Job, JobRecord, Retry, Transaction
from holdfast.model.log import PARTS, Cut, Extent, Lag, Page, Part, Waiting
from holdfast.model.policy import Policy
from holdfast.model.states import State
from holdfast.model.upkeep import Cursor, Forgotten, Group, Lock, Size, StateRecord, Trim

Start = Literal["latest", "earliest"] | datetime
WAITING_ONLY = Cancellation()
STORE_ERRORS = (Exception, asyncio.CancelledError)
"""What a call of a store may raise, documented or not. Call `raise_if_cancelled` first when you catch it."""


def raise_if_cancelled(error: BaseException) -> None:
    """Raise the cancellation of the running task.

    One that nobody asked for, as of a client whose own task was cancelled, is an error of the store.
    """
    if isinstance(error, asyncio.CancelledError):
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise error


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What really differs between backends. Callers read it instead of asking what kind of store there is."""

    joins_transactions: bool = False
    """A publish, or the completion of a job, on the caller's own connection is part of the caller's
    transaction."""
    foreign_groups: bool = False
    """Other software can have consumer groups of its own on a channel's log."""


@dataclass(frozen=True, slots=True)
class Consumer:
    """A worker consumer as it is stored."""

    channel: str
    name: str
    policy: Policy
    paused: bool
    created_at: datetime
    display: str = ""
    """A name for people."""
    revision: int = 1
    """Rises with every change of its policy, its pause or its display name."""
    channel_display: str = ""
    """Its channel's name for people."""


@dataclass(frozen=True, slots=True)
class ConsumerStats:
    """A consumer's live jobs by state, its dead letters, and what waits longest."""

    states: dict[State, int]
    oldest_ready: datetime | None
    next_due: datetime | None


@dataclass(frozen=True, slots=True)
class Backlog:
    """What a consumer has before it, and since when the oldest ready job has been due."""

    channel: str
    consumer: str
    live: dict[State, int]
    oldest_ready: datetime | None


@dataclass(frozen=True, slots=True)
class JobTimes:
    """The oldest and the newest of a consumer's ready jobs, by when they were due, and of its dead ones, by
    when they died. None where there is none."""

    channel: str
    consumer: str
    ready: tuple[datetime, datetime] | None
    dead: tuple[datetime, datetime] | None


@dataclass(frozen=True, slots=True)
class ChannelStats:
    """A channel's log at a glance."""

    name: str
    created_at: datetime
    events: int
    last_published: datetime | None
    consumers: list[str]
    display: str = ""
    """A name for people."""


@dataclass(frozen=True, slots=True)
class Reading:
    """Phase one of the lifecycle: what is due, and how loaded the store is."""

    due: list[Due]
    backfills: list[int | str]
    load: int
    full: bool
    """Whether the limit cut the list, so that another step is worth taking at once."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of `holdfast check`."""

    level: Literal["ok", "warning", "error"]
    subject: str
    message: str


@dataclass(slots=True)
class Applied:
    """What phase two did, by move. `refused` counts what had changed since phase one."""

    promoted: int = 0
    abandoned: int = 0
    buried: int = 0
    backfilled: int = 0
    refused: int = 0

    def __add__(self, other: Applied) -> Applied:
        return Applied(*(getattr(self, name) + getattr(other, name) for name in Applied.__slots__))

    @property
    def total(self) -> int:
        """Everything that was changed."""
        return self.promoted + self.abandoned + self.buried + self.backfilled


class Channels(Protocol):
    """Channels, and the worker consumers that read them."""

    async def create(self, channel: str) -> None:
        """Make sure that a channel exists."""

    async def names(self) -> list[str]:
        """Return all channels, by name."""

    async def stats(self, channel: str) -> ChannelStats:
        """Return one channel. Raises `NotFound`."""

    async def subscribe(
        self,
        channel: str,
        consumer: str,
        policy: Policy,
        start: Start = "latest",
        *,
        revision: int | None = None,
    ) -> Consumer:
        """Create a worker consumer or change its policy. `start` counts at creation only.

        With `revision`, only where the consumer has that one (0: where there is none), else `Outdated`.

        Every event published before it (from `start` on) and after it gets a job: none is missed while
        publishes are in flight. A dead-letter channel that is missing, the channel itself or part of a
        cycle raises `InvalidPolicy`.
        """

    async def consumers(self, channel: str | None = None) -> list[Consumer]:
        """Return all worker consumers, of one channel or of all."""

    async def consumer(self, channel: str, consumer: str) -> Consumer:
        """Return one worker consumer. Raises `NotFound`."""

    async def consumer_stats(self, channel: str, consumer: str) -> ConsumerStats:
        """Return how many jobs of a consumer are in each state, dead letters included."""

    async def backlogs(self, limit: int) -> list[Backlog]:
        """Return the live jobs of every consumer by state, at a cost that does not grow with their number.

        Where a store would have to count them it stops at `limit`: for each consumer's ready jobs, and for
        all leased and all scheduled ones together.
        """

    async def job_times(self) -> list[JobTimes]:
        """Return the oldest and newest times of every consumer, at a cost that does not grow with jobs."""

    async def set_paused(self, channel: str, consumer: str, paused: bool) -> None:
        """Pause or resume. A paused consumer hands out no job; leases that run go on."""

    async def set_display(self, channel: str, consumer: str | None, display: str) -> None:
        """Give a channel, or one of its consumers, a name for people; empty takes it away."""

    async def remove_consumer(self, channel: str, consumer: str, limit: int) -> Removal:
        """Remove a worker consumer with its jobs, its dead letters, its history and their counts, at most
        `limit` rows in one step; call it until it is done. Jobs that have no row are counted in the first
        step. From that one on it gets no job, hands out none, and is in no list; a crash in between leaves
        it so, and a new one of that name starts afresh only after the last step. Raises `NotFound` where
        there is none."""


class Log(Protocol):
    """The append-only log of each channel."""

    async def publish(
        self,
        channel: str,
        events: Sequence[Event],
        *,
        at: datetime | None = None,
        priority: int = 0,
        connection: Any = None,
    ) -> list[Receipt]:
        """Append events, all or none, and create their jobs. Every event has its id.

        Idempotent on (channel, source, id): a repeat returns the first receipt with `duplicate`.
        The same id with other content raises `IdConflict`; a full bounded consumer raises `Overloaded`.
        """

    async def read(self, channel: str, after: str | None, limit: int) -> list[LogEntry]:
        """Return the log after a position, in order. Never passes an event that may still commit below."""

    async def extent(self, channel: str) -> Extent:
        """Return from where to where the log can be read; all None where the channel is missing or empty."""

    async def seek(self, channel: str, time: datetime) -> str | None:
        """Return the position of the last event published before a time; None where there is none."""

    async def cuts(
        self, channel: str, after: str | None, limit: int, every: int, until: str | None = None
    ) -> list[Cut]:
        """Cut what follows `after`, up to and including `until`, into slices of about `every` events.

        Ends at `limit` events, or a little above where it is not worth knowing exactly (less than one slice).
        The last cut ends the whole; an empty list means that there is nothing to read. Costs far less than
        reading the events.
        """

    def pages(self, channel: str, after: str | None, until: str, size: int) -> AsyncIterator[Page]:
        """Yield every event after `after` up to and including `until`, in order, in pages of at most `size`.

        Pure: the same range gives the same events again, as long as nothing of it was trimmed. Raises
        `DataLost` where something after `after` was trimmed.
        """

    async def behind(self, channel: str, after: str | None, limit: int) -> Lag:
        """Return how many events follow a position, counted up to `limit`, and how old the first one is."""

    async def waiting(self, after: Mapping[str, str | None], limit: int) -> dict[str, Waiting]:
        """Return what follows a position on each of many channels, counted up to `limit` on each, in few
        requests where the store can."""

    async def read_parts(self, parts: Sequence[Part], most: int = PARTS) -> list[Page]:
        """Return every event of parts of the log, a page for each, empty where there is nothing, in few
        requests where the store can. The caller sees to it that they are small. A store that can only guess
        how much data they hold ends before the part with which it is more than about `most` bytes, be it the
        first one: read that by `pages`. Pure, and raises `DataLost`, as `pages` does."""


class Leases(Protocol):
    """Jobs: leased and ended by workers under their tokens, changed and looked at by operators."""

    async def claim(self, channel: str, consumer: str, limit: int, worker: str) -> list[Job]:
        """Lease up to `limit` ready jobs: by priority (higher first), then due time.

        Each claim raises the job's token and adds an attempt. An ordered consumer never gets an event
        of a key while an earlier one of that key is live.
        """

    async def complete(self, jobs: Sequence[Job]) -> list[bool]:
        """leased → done."""

    async def complete_within(self, job: Job, connection: Any) -> None:
        """leased → done, when the transaction that the caller's `connection` is in is committed. Until it has
        ended, nobody else takes the job, and nobody waits for it: an `extend` counts the lease as held.

        Raises `LeaseLost`; that transaction can not be committed any more. Raises `InvalidInput` for a
        connection to another store, and where `Capabilities.joins_transactions` is not set.
        """

    def transaction(self, job: Job, completed: Callable[[], None]) -> Transaction:
        """Return a block with a connection of its own, whose transaction completes the job as
        `complete_within` does, and `completed` is called after the commit; see `Job.transaction`."""

    async def completions(self, jobs: Sequence[Job]) -> list[Completion]:
        """Return what became of completions in transactions that others end: DONE, OPEN or NONE."""

    async def retry(self, retries: Sequence[Retry]) -> list[bool]:
        """leased → scheduled | ready: after a failure, a snooze or a release."""

    async def bury(self, burials: Sequence[Burial]) -> list[bool]:
        """leased → dead, in one atomic step with the dead letter and its count."""

    async def extend(self, jobs: Sequence[Job], by: timedelta) -> list[bool]:
        """Move the deadline of each lease to now plus `by`."""

    async def cancel(
        self,
        channel: str,
        source: str,
        event_id: str,
        consumer: str | None,
        how: Cancellation = WAITING_ONLY,
    ) -> int:
        """scheduled | ready → cancelled, for one consumer or for all. Returns how many.

        Where `how` says so also leased → cancelled: the lease is lost at once, whatever its holder does, its
        neighbours go on, and listeners are told.
        """

    async def cancel_waiting(self, channel: str, consumer: str, limit: int) -> int:
        """scheduled | ready → cancelled, for up to `limit` jobs of one consumer, also those that its start in
        the past has yet to make. Returns how many: a store may take fewer in one step, but none only where
        none waits. Raises `NotFound` where there is no such consumer."""

    async def requeue(self, channel: str, consumer: str, job_id: str) -> bool:
        """dead or live → ready at the tail with fresh budgets. Raises the token, so that a live lease on it
        is lost. Returns False when there is no such job."""

    async def stuck(self, limit: int) -> list[JobRecord]:
        """Return leased jobs past their deadline, oldest first."""

    async def find_jobs(self, channel: str, source: str, event_id: str) -> list[JobRecord]:
        """Return an event's job for every consumer, live or terminal."""

    async def job(self, channel: str, consumer: str, job_id: str) -> JobRecord | None:
        """Return one job, live or terminal, as long as the store remembers it."""


class DeadLetters(Protocol):
    """Dead letters and their counts: every way in and out of dead moves the counts in its own transaction."""

    async def counts(self) -> list[DeadCount]:
        """Return one count for each consumer and reason that is not zero: exact, without counting."""

    async def clusters(self, channel: str | None, consumer: str | None, limit: int) -> list[Cluster]:
        """Return dead letters by consumer and fingerprint, the largest first; exact, without counting."""

    async def page(self, wanted: DeadFilter, after: str | None, limit: int) -> DeadPage:
        """Return dead letters that match a filter, the latest death first. Bounded effort: see
        `DeadPage.after`."""

    async def letter(self, channel: str, consumer: str, job_id: str) -> DeadLetter | None:
        """Return one dead letter with its event and every attempt's error."""

    async def revive(
        self, channel: str, consumer: str, job_ids: Sequence[str], data: bytes | None = None
    ) -> list[bool]:
        """dead → ready at the tail with fresh budgets, all in one step; False for what is not dead.

        With `data` the jobs hand out this instead of the event's own data from now on, also after they died
        again; the log keeps the original.
        """

    async def purge(self, channel: str, consumer: str, job_ids: Sequence[str]) -> list[bool]:
        """dead → purged, all in one step, each with a record of it; False for what is not dead."""

    async def fold(self, fresh: timedelta, most: int, lock: Lock | None) -> Fold:
        """Fold deltas into the summary, unless that was done within `fresh` and at most `most` deltas wait.

        Where it was never done, count what is there first, once. Raises `LockLost` once a newer token of the
        lock was issued. Without a lock it only returns what it would fold.
        """

    async def recount(self, repair: bool, lock: Lock) -> list[Drift]:
        """Count the dead letters of every consumer and compare; with `repair` make the counts right. Exact
        while others move jobs in and out of dead. Raises `LockLost` as `fold` does."""


class Lifecycle(Protocol):
    """What happens to jobs by time alone, in two phases."""

    async def due(self, limit: int) -> Reading:
        """Phase one: read what is due, indexed by deadline, without writing."""

    async def apply(self, actions: Sequence[Action]) -> Applied:
        """Phase two: apply each action if it still holds."""

    async def backfill(self, ref: int | str, limit: int) -> int:
        """Turn up to `limit` older events into jobs for a consumer that started in the past."""


class Cursors(Protocol):
    """Stream consumers: each is a cursor on one channel."""

    async def attach(self, channel: str, consumer: str, start: Start = "earliest") -> Cursor:
        """Create a stream consumer with its cursor at `start`, or return the one that is there.

        From here on nothing after its cursor is trimmed.
        """

    async def all(self, channel: str | None = None) -> list[Cursor]:
        """Return all stream consumers, of one channel or of all."""

    async def move(self, channel: str, consumer: str, expected: str | None, position: str) -> bool:
        """Move a cursor forward from `expected`. False, and no change, where it stands elsewhere by now, or
        where `position` is not after `expected`. Raises `NotFound` where there is no such stream consumer."""

    async def detach(self, channel: str, consumer: str) -> bool:
        """Remove a stream consumer; it holds nothing back any more. False where there was none."""


class Locks(Protocol):
    """Leases on names, with fencing tokens that only rise."""

    async def acquire(self, name: str, owner: str, ttl: timedelta) -> Lock | None:
        """Take a lock that is free or past its deadline, under a new, higher token. None while it is held."""

    async def renew(self, lock: Lock, ttl: timedelta) -> Lock:
        """Move the deadline to now plus `ttl`, even past it, while nobody else took it. Raises `LockLost`."""

    async def release(self, lock: Lock) -> bool:
        """Free the lock if it is still this holder's."""


class Retention(Protocol):
    """What removes old data. Each step carries the sweeper's lock, and raises `LockLost` once a newer token
    was issued. Without a lock nothing is changed: it returns what all steps together would do."""

    async def trim(
        self,
        channel: str,
        before: datetime,
        limit: int,
        lock: Lock | None,
        *,
        ignore: Sequence[str] = (),
        groups: Sequence[str] = (),
        ended: Sequence[Ref] = (),
    ) -> Trim:
        """Remove the oldest events, published before a time, as far as nobody needs them any more.

        Needed is what follows the cursor of any stream consumer that is not in `ignore`, what any worker
        consumer has not finished or not yet turned into jobs, and what a foreign group listed in `groups`
        has not acknowledged; a listed group that does not exist needs everything. A dead letter keeps its
        event, however old. The check and the removal are one step: what is needed by the time of the
        removal stays. Jobs in `ended` are about to be given up: without a lock they are taken as dead.
        """

    async def size(self, channel: str) -> Size:
        """Return how much the log holds, without reading it."""

    async def set_full(self, channel: str, full: bool) -> None:
        """Mark a channel as full or not. A full one refuses publishes with `Overloaded`."""

    async def forget(self, keys: datetime, jobs: datetime, limit: int, lock: Lock | None) -> Forgotten:
        """Remove idempotency keys published, and jobs ended other than dead, before these times, where the
        store does not let them expire by itself."""

    async def purge_dead(self, channel: str, before: datetime, limit: int, lock: Lock) -> dict[str, int]:
        """dead → purged for what died before a time, each with a record. Returns how many, by consumer."""


class Groups(Protocol):
    """Consumer groups of other software on the logs. A store without them has none."""

    async def all(self, alive: timedelta) -> list[Group]:
        """Return the groups on all channels; a member counts as living if it was seen within `alive`."""

    async def reclaim(self, group: Group, alive: timedelta, limit: int, lock: Lock) -> int:
        """Hand stale pending entries over to the group's living member. Returns how many."""

    async def remove(self, group: Group, alive: timedelta, lock: Lock | None) -> bool:
        """Remove a group, unless a member was seen within `alive`. Without a lock: would it?"""


class Records(Protocol):
    """Small state records with revisions, and a time at which each is due."""

    async def put(
        self, key: str, fields: Mapping[str, str], expected: int, due: datetime | None = None
    ) -> int | None:
        """Write a record whole if it still has the revision `expected` (0: it does not exist). Returns the
        new revision, or None where it was refused. With `due` it is found by `due` from then on."""

    async def get(self, key: str) -> StateRecord | None:
        """Return one record."""

    async def remove(self, key: str, expected: int) -> bool:
        """Remove a record if it still has the revision `expected`; False, and no change, where it has not."""

    async def due(
        self,
        prefix: str,
        limit: int,
        *,
        newest: bool = False,
        after: tuple[datetime, str] | None = None,
        until: datetime | None = None,
    ) -> list[StateRecord]:
        """Return records under a prefix (`gbe.state.tasks.`) whose due time has passed, oldest or newest
        first, in one order by due time and key; with `after`, only what comes after that one in it. With
        `until`, those that are due by that time, which may be in the future."""


class Listener(Protocol):
    """Tells that a channel may have new work, or a job was cancelled. Both may be spurious, or missed."""

    async def close(self) -> None:
        """Stop listening."""


class Backend(Protocol):
    """One store. Opened before use, closed after; safe to use from many tasks of one event loop.

    It has one object for each noun, and itself only what concerns the store as a whole.
    """

    url: str
    capabilities: Capabilities

    @property
    def channels(self) -> Channels: ...
    @property
    def log(self) -> Log: ...
    @property
    def leases(self) -> Leases: ...
    @property
    def deadletters(self) -> DeadLetters: ...
    @property
    def lifecycle(self) -> Lifecycle: ...
    @property
    def cursors(self) -> Cursors: ...
    @property
    def locks(self) -> Locks: ...
    @property
    def retention(self) -> Retention: ...
    @property
    def groups(self) -> Groups: ...
    @property
    def records(self) -> Records: ...

    async def open(self) -> list[str]:
        """Connect and bring the schema up to date. Returns the names of the migrations it applied."""

    async def close(self) -> None:
        """Give every connection back."""

    def fork(self) -> Backend:
        """Return an unopened backend on the same store, for another thread's event loop."""

    async def now(self) -> datetime:
        """Return the store's time: its server's clock plus the test kit's offset."""

    async def epoch(self) -> int:
        """Return the first field of the positions that are written now. It rises when the server was
        restored, replaced or promoted: what was acknowledged last before that may be missing."""

    async def advance(self, by: timedelta) -> None:
        """Move the store's time forward. Only the test kit calls this."""

    async def check(self) -> list[Finding]:
        """Return the server's real durability settings, in words."""

    async def listen(
        self,
        channels: Sequence[str],
        wake: Callable[[str], None],
        failed: Callable[[BaseException], None] = lambda _: None,
        cancelled: Callable[[str, str, str], None] = lambda *_: None,
    ) -> Listener:
        """Call `wake(channel)` on this event loop when a channel may have new work, until closed; and
        `cancelled(channel, consumer, job_id)` when a leased job may have been cancelled. Whenever it begins
        to listen it calls both, the latter with two empty names: it may have missed some.

        A listener that loses its connection, or meets any other error, calls `failed` and listens again.
        """
