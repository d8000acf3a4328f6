"""NATS JetStream as a Holdfast backend: one store, and one object per noun."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from holdfast.backends.nats import checks, many
from holdfast.backends.nats.buckets import Buckets
from holdfast.backends.nats.bulk import Bulk
from holdfast.backends.nats.burials import Burials
from holdfast.backends.nats.census import Census
from holdfast.backends.nats.consumers import Consumers
from holdfast.backends.nats.cursors import Cursors
from holdfast.backends.nats.cuts import Cuts
from holdfast.backends.nats.dead import Dead
from holdfast.backends.nats.entries import Entries
from holdfast.backends.nats.exits import Exits
from holdfast.backends.nats.fates import Fates
from holdfast.backends.nats.forgetting import Forgetting
from holdfast.backends.nats.groups import Groups
from holdfast.backends.nats.guards import Guards
from holdfast.backends.nats.ingest import Ingest
from holdfast.backends.nats.keys import Keys
from holdfast.backends.nats.leases import Leases
from holdfast.backends.nats.lifecycle import Lifecycle
from holdfast.backends.nats.listener import NatsListener
from holdfast.backends.nats.locks import Locks
from holdfast.backends.nats.log import Log
from holdfast.backends.nats.operators import Operators
from holdfast.backends.nats.pages import MOST, Pages
from holdfast.backends.nats.publishing import Publishing
from holdfast.backends.nats.removals import Removals
from holdfast.backends.nats.store import Store
from holdfast.backends.nats.times import from_micros, to_micros
from holdfast.backends.nats.transitions import Transitions
from holdfast.backends.nats.trimming import Trimming
from holdfast.backends.parts import read_parts
from holdfast.contracts import (
    Applied,
    Backlog,
    Capabilities,
    ChannelStats,
    Consumer,
    ConsumerStats,
    Finding,
    JobTimes,
    Reading,
    Start,
)
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
from holdfast.model.decide import Action, Ref
from holdfast.model.duration import parse_duration
from holdfast.model.errors import Duration
from holdfast.model.event import Event, LogEntry, Receipt
from holdfast.model.job import Burial, Job, JobRecord, Retry
from holdfast.model.log import PARTS, Cut, Extent, Lag, Page, Part, Waiting
from holdfast.model.policy import Policy
from holdfast.model.upkeep import Cursor, Forgotten, Group, Lock, Record, Size, Trim


class NatsBackend:
    """One JetStream stream. The contract's prose stands in `holdfast.contracts`.

    One connection carries everything, since a batch must stay in order; `connections` is there because every
    backend has it. `history` is how long a job is remembered after it was done, cancelled or discarded; dead
    letters and idempotency keys stay.
    """

    capabilities = Capabilities(foreign_appends=True, foreign_groups=True)

    def __init__(self, url: str, *, connections: int = 1, history: Duration = "7d") -> None:
        self.url = url
        self._history = history
        seconds = max(int(parse_duration(history, what="history").total_seconds()), 1)
        store = self._store = Store(url, seconds)
        fates = Fates(store)
        entries = Entries(store, fates)
        keys = Keys(store, fates)
        ingest = self._ingest = Ingest(store, entries, keys)
        transitions = Transitions(store, entries)
        self._log = Log(store, entries, Publishing(store, entries, fates, keys, ingest))
        self._leases = Leases(store, entries, ingest, transitions)
        self._consumers = Consumers(store, entries, fates, ingest)
        self._lifecycle = Lifecycle(store, ingest, transitions)
        self._operators = Operators(store, keys, ingest, transitions)
        locks = self._locks = Locks(store)
        bulk = self._bulk = Bulk(store, entries, fates)
        self._cuts, self._pages = Cuts(store, entries, fates), Pages(store, entries, fates)
        cursors = self._cursors = Cursors(store, bulk)
        groups = self._groups = Groups(store, locks)
        guards = Guards(store, cursors, groups)
        self._trimming = Trimming(store, entries, fates, bulk, guards, locks)
        self._forgetting = Forgetting(store, bulk, locks)
        self._burials = Burials(store, locks)
        self._dead, self._exits = Dead(store, entries), Exits(store, entries, transitions)
        self._census, self._removals = Census(store, locks, bulk), Removals(store)
        self._buckets = Buckets(store)

    async def open(self) -> list[str]:
        await self._store.open()
        return []

    async def close(self) -> None:
        await self._store.close()

    def fork(self) -> NatsBackend:
        return NatsBackend(self.url, history=self._history)

    async def now(self) -> datetime:
        return from_micros(await self._store.clock())

    async def epoch(self) -> int:
        await self._store.clock()  # recognises the server
        return self._store.registry.epochs[-1][1]

    async def advance(self, by: timedelta) -> None:
        await self._store.look()
        last = int((await self._store.info())["state"]["last_seq"])
        await self._store.change_registry(lambda known: known.with_offset(to_micros(by), last))

    async def check(self) -> list[Finding]:
        return await checks.check(self._store.link)

    async def create_channel(self, channel: str) -> None:
        await self._store.recognise()
        await self._store.ensure_channel(channel)

    async def channels(self) -> list[str]:
        return await self._consumers.channels()

    async def channel_stats(self, channel: str) -> ChannelStats:
        return await self._consumers.channel_stats(channel)

    async def subscribe(
        self,
        channel: str,
        consumer: str,
        policy: Policy,
        start: Start = "latest",
        *,
        revision: int | None = None,
    ) -> Consumer:
        return await self._consumers.subscribe(channel, consumer, policy, start, revision)

    async def consumers(self, channel: str | None = None) -> list[Consumer]:
        return await self._consumers.consumers(channel)

    async def consumer(self, channel: str, consumer: str) -> Consumer:
        return await self._consumers.consumer(channel, consumer)

    async def consumer_stats(self, channel: str, consumer: str) -> ConsumerStats:
        return await self._consumers.stats(channel, consumer)

    async def backlogs(self, limit: int) -> list[Backlog]:
        return await self._consumers.backlogs()

    async def job_times(self) -> list[JobTimes]:
        return await self._dead.job_times()

    async def set_paused(self, channel: str, consumer: str, paused: bool) -> None:
        await self._consumers.set_paused(channel, consumer, paused)

    async def set_display(self, channel: str, consumer: str | None, display: str) -> None:
        await self._consumers.set_display(channel, consumer, display)

    async def remove_consumer(self, channel: str, consumer: str, limit: int) -> Removal:
        return await self._removals.remove(channel, consumer, limit)

    async def publish(
        self,
        channel: str,
        events: Sequence[Event],
        *,
        at: datetime | None = None,
        priority: int = 0,
        connection: Any = None,
    ) -> list[Receipt]:
        return await self._log.publish(channel, events, at, priority, connection)

    async def read(self, channel: str, after: str | None, limit: int) -> list[LogEntry]:
        return await self._log.read(channel, after, limit)

    async def claim(self, channel: str, consumer: str, limit: int, worker: str) -> list[Job]:
        return await self._leases.claim(channel, consumer, limit, worker)

    async def complete(self, jobs: Sequence[Job]) -> list[bool]:
        return await self._leases.complete(jobs)

    async def retry(self, retries: Sequence[Retry]) -> list[bool]:
        return await self._leases.retry(retries)

    async def bury(self, burials: Sequence[Burial]) -> list[bool]:
        return await self._leases.bury(burials)

    async def extend(self, jobs: Sequence[Job], by: timedelta) -> list[bool]:
        return await self._leases.extend(jobs, by)

    async def cancel(self, channel: str, source: str, event_id: str, consumer: str | None) -> int:
        return await self._operators.cancel(channel, source, event_id, consumer)

    async def requeue(self, channel: str, consumer: str, job_id: str) -> bool:
        return await self._operators.requeue(channel, consumer, job_id)

    async def stuck(self, limit: int) -> list[JobRecord]:
        return await self._operators.stuck(limit)

    async def find_jobs(self, channel: str, source: str, event_id: str) -> list[JobRecord]:
        return await self._operators.find_jobs(channel, source, event_id)

    async def job(self, channel: str, consumer: str, job_id: str) -> JobRecord | None:
        return await self._operators.job(channel, consumer, job_id)

    # dead letters

    async def dead_counts(self) -> list[DeadCount]:
        return await self._dead.counts()

    async def clusters(self, channel: str | None, consumer: str | None, limit: int) -> list[Cluster]:
        return await self._dead.clusters(channel, consumer, limit)

    async def dead_letters(self, wanted: DeadFilter, after: str | None, limit: int) -> DeadPage:
        return await self._dead.page(wanted, after, limit)

    async def dead_letter(self, channel: str, consumer: str, job_id: str) -> DeadLetter | None:
        return await self._dead.one(channel, consumer, job_id)

    async def revive(
        self, channel: str, consumer: str, job_ids: Sequence[str], data: bytes | None = None
    ) -> list[bool]:
        return await self._exits.revive(channel, consumer, job_ids, data)

    async def purge(self, channel: str, consumer: str, job_ids: Sequence[str]) -> list[bool]:
        return await self._exits.purge(channel, consumer, job_ids)

    async def fold_dead(self, fresh: timedelta, most: int, lock: Lock | None) -> Fold:
        return await self._census.fold(lock)

    async def recount_dead(self, repair: bool, lock: Lock) -> list[Drift]:
        return await self._census.recount(repair, lock)

    # lifecycle

    async def due(self, limit: int) -> Reading:
        return await self._lifecycle.due(limit)

    async def apply(self, actions: Sequence[Action]) -> Applied:
        return await self._lifecycle.apply(actions)

    async def backfill(self, ref: int | str, limit: int) -> int:
        return await self._ingest.backfill(str(ref), limit)

    async def listen(
        self,
        channels: Sequence[str],
        wake: Callable[[str], None],
        failed: Callable[[BaseException], None] = lambda _: None,
    ) -> NatsListener:
        return NatsListener(self.url, channels, wake, failed)

    # the log in bulk

    async def extent(self, channel: str) -> Extent:
        return await self._bulk.extent(channel)

    async def seek(self, channel: str, time: datetime) -> str | None:
        return await self._bulk.seek(channel, time)

    async def cuts(
        self, channel: str, after: str | None, limit: int, every: int, until: str | None = None
    ) -> list[Cut]:
        return await self._cuts.cuts(channel, after, limit, every, until)

    def pages(self, channel: str, after: str | None, until: str, size: int) -> AsyncIterator[Page]:
        return self._pages.pages(channel, after, until, size)

    async def behind(self, channel: str, after: str | None, limit: int) -> Lag:
        return await self._bulk.behind(channel, after, limit)

    async def waiting(self, after: Mapping[str, str | None], limit: int) -> dict[str, Waiting]:
        return await many.waiting(self, after, limit)

    async def read_parts(self, parts: Sequence[Part], most: int = PARTS) -> list[Page]:
        return await read_parts(lambda part: self.pages(*part, MOST), parts, most)

    # stream consumers

    async def attach(self, channel: str, consumer: str, start: Start = "earliest") -> Cursor:
        return await self._cursors.attach(channel, consumer, start)

    async def cursors(self, channel: str | None = None) -> list[Cursor]:
        return await self._cursors.cursors(channel)

    async def move(self, channel: str, consumer: str, expected: str | None, position: str) -> bool:
        return await self._cursors.move(channel, consumer, expected, position)

    async def detach(self, channel: str, consumer: str) -> bool:
        return await self._cursors.detach(channel, consumer)

    # locks

    async def lock(self, name: str, owner: str, ttl: timedelta) -> Lock | None:
        return await self._locks.lock(name, owner, ttl)

    async def renew(self, lock: Lock, ttl: timedelta) -> Lock:
        return await self._locks.renew(lock, ttl)

    async def unlock(self, lock: Lock) -> bool:
        return await self._locks.unlock(lock)

    # retention

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
        return await self._trimming.trim(channel, before, limit, lock, ignore, groups, ended)

    async def size(self, channel: str) -> Size:
        return await self._bulk.size(channel)

    async def set_full(self, channel: str, full: bool) -> None:
        await self._consumers.set_full(channel, full)

    async def forget(self, keys: datetime, jobs: datetime, limit: int, lock: Lock | None) -> Forgotten:
        return await self._forgetting.forget(keys, limit, lock)

    async def purge_dead(self, channel: str, before: datetime, limit: int, lock: Lock) -> dict[str, int]:
        return await self._burials.purge(channel, before, limit, lock)

    # foreign groups

    async def groups(self, alive: timedelta) -> list[Group]:
        return await self._groups.groups(alive)

    async def reclaim(self, group: Group, alive: timedelta, limit: int, lock: Lock) -> int:
        return await self._groups.reclaim(group, alive, limit, lock)

    async def remove_group(self, group: Group, alive: timedelta, lock: Lock | None) -> bool:
        return await self._groups.remove(group, alive, lock)

    # state records

    async def put_record(
        self, key: str, fields: Mapping[str, str], expected: int, due: datetime | None = None
    ) -> int | None:
        return await self._buckets.put(key, fields, expected, due)

    async def record(self, key: str) -> Record | None:
        return await self._buckets.record(key)

    async def remove_record(self, key: str, expected: int) -> bool:
        return await self._buckets.remove(key, expected)

    async def due_records(
        self, prefix: str, limit: int, *, newest: bool = False, after: tuple[datetime, str] | None = None
    ) -> list[Record]:
        return await self._buckets.due(prefix, limit, newest, after)
