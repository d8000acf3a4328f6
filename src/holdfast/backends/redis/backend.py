"""Redis as a Holdfast backend: one session, and one object per noun."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from holdfast.backends.redis import checks, keys
from holdfast.backends.redis.bulk import Bulk
from holdfast.backends.redis.census import Census
from holdfast.backends.redis.codec import from_micros, to_micros
from holdfast.backends.redis.consumers import Consumers
from holdfast.backends.redis.cursors import Cursors
from holdfast.backends.redis.dead import Dead
from holdfast.backends.redis.deadpages import DeadPages
from holdfast.backends.redis.groups import Groups
from holdfast.backends.redis.leases import Leases
from holdfast.backends.redis.lifecycle import Lifecycle
from holdfast.backends.redis.listener import RedisListener
from holdfast.backends.redis.locks import Locks
from holdfast.backends.redis.log import Log
from holdfast.backends.redis.operators import Operators
from holdfast.backends.redis.records import Records
from holdfast.backends.redis.removal import Removals
from holdfast.backends.redis.retention import Retention
from holdfast.backends.redis.session import Session
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

_MILLISECOND = timedelta(milliseconds=1)


class RedisBackend:
    """One Redis database. The contract's prose stands in `holdfast.contracts`.

    `dedupe_window` is how long an id is remembered after its publication, `history` how long the record of a
    job is kept after it was done, cancelled or discarded. Dead letters stay. Both are the store's: where they
    are not given, they stay what they are there, at first 14 and 7 days.
    """

    capabilities = Capabilities(joins_transactions=False, foreign_appends=True, foreign_groups=True)

    def __init__(
        self,
        url: str,
        *,
        connections: int = 4,
        dedupe_window: Duration | None = None,
        history: Duration | None = None,
    ) -> None:
        self.url = url
        self._kept = {"dedupe_window": dedupe_window, "history": history}
        settings = _milliseconds(history, "history"), _milliseconds(dedupe_window, "dedupe_window")
        self._session = Session(url, connections, *settings)
        self._log = Log(self._session)
        self._leases = Leases(self._session)
        self._consumers = Consumers(self._session)
        self._lifecycle = Lifecycle(self._session)
        self._operators = Operators(self._session, self._consumers)
        self._bulk = Bulk(self._session)
        self._cursors = Cursors(self._session, self._bulk)
        self._locks = Locks(self._session)
        self._retention = Retention(self._session, self._bulk)
        self._groups = Groups(self._session)
        self._records = Records(self._session)
        self._dead = Dead(self._session)
        self._dead_pages = DeadPages(self._session, self._dead)
        self._census = Census(self._session)
        self._removals = Removals(self._session)

    async def open(self) -> list[str]:
        await self._session.open()
        return []  # the scripts come with us, and the keys appear as they are needed

    async def close(self) -> None:
        await self._session.close()

    def fork(self) -> RedisBackend:
        return RedisBackend(self.url, connections=1, **self._kept)

    async def now(self) -> datetime:
        return from_micros(await self._session.run("now"))

    async def epoch(self) -> int:
        return int(await self._session.run("epoch"))

    async def advance(self, by: timedelta) -> None:
        await self._session.call("HINCRBY", keys.STORE, "offset", to_micros(by))

    async def check(self) -> list[Finding]:
        return await checks.check(self._session)

    async def create_channel(self, channel: str) -> None:
        await self._consumers.create_channel(channel)

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
        return await self._consumers.job_times()

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

    async def dead_counts(self) -> list[DeadCount]:
        return await self._dead.counts()

    async def clusters(self, channel: str | None, consumer: str | None, limit: int) -> list[Cluster]:
        return await self._dead.clusters(channel, consumer, limit)

    async def dead_letters(self, wanted: DeadFilter, after: str | None, limit: int) -> DeadPage:
        return await self._dead_pages.page(wanted, after, limit)

    async def dead_letter(self, channel: str, consumer: str, job_id: str) -> DeadLetter | None:
        return await self._dead.letter(channel, consumer, job_id)

    async def revive(
        self, channel: str, consumer: str, job_ids: Sequence[str], data: bytes | None = None
    ) -> list[bool]:
        return await self._dead.revive(channel, consumer, job_ids, data)

    async def purge(self, channel: str, consumer: str, job_ids: Sequence[str]) -> list[bool]:
        return await self._dead.purge(channel, consumer, job_ids)

    async def fold_dead(self, fresh: timedelta, most: int, lock: Lock | None) -> Fold:
        return await self._census.fold(lock)

    async def recount_dead(self, repair: bool, lock: Lock) -> list[Drift]:
        return await self._census.recount(repair, lock)

    async def due(self, limit: int) -> Reading:
        return await self._lifecycle.due(limit)

    async def apply(self, actions: Sequence[Action]) -> Applied:
        return await self._lifecycle.apply(actions)

    async def backfill(self, ref: int | str, limit: int) -> int:
        return await self._lifecycle.backfill(ref, limit)

    async def listen(
        self,
        channels: Sequence[str],
        wake: Callable[[str], None],
        failed: Callable[[BaseException], None] = lambda _: None,
    ) -> RedisListener:
        return RedisListener(self.url, channels, wake, failed)

    async def extent(self, channel: str) -> Extent:
        return await self._bulk.extent(channel)

    async def seek(self, channel: str, time: datetime) -> str | None:
        return await self._bulk.seek(channel, time)

    async def cuts(
        self, channel: str, after: str | None, limit: int, every: int, until: str | None = None
    ) -> list[Cut]:
        return await self._bulk.cuts(channel, after, limit, every, until)

    def pages(self, channel: str, after: str | None, until: str, size: int) -> AsyncIterator[Page]:
        return self._bulk.pages(channel, after, until, size)

    async def behind(self, channel: str, after: str | None, limit: int) -> Lag:
        return await self._bulk.behind(channel, after, limit)

    async def waiting(self, after: Mapping[str, str | None], limit: int) -> dict[str, Waiting]:
        return await self._bulk.waiting(after, limit)

    async def read_parts(self, parts: Sequence[Part], most: int = PARTS) -> list[Page]:
        return await self._bulk.read_parts(parts, most)

    async def attach(self, channel: str, consumer: str, start: Start = "earliest") -> Cursor:
        return await self._cursors.attach(channel, consumer, start)

    async def cursors(self, channel: str | None = None) -> list[Cursor]:
        return await self._cursors.cursors(channel)

    async def move(self, channel: str, consumer: str, expected: str | None, position: str) -> bool:
        return await self._cursors.move(channel, consumer, expected, position)

    async def detach(self, channel: str, consumer: str) -> bool:
        return await self._cursors.detach(channel, consumer)

    async def lock(self, name: str, owner: str, ttl: timedelta) -> Lock | None:
        return await self._locks.lock(name, owner, ttl)

    async def renew(self, lock: Lock, ttl: timedelta) -> Lock:
        return await self._locks.renew(lock, ttl)

    async def unlock(self, lock: Lock) -> bool:
        return await self._locks.unlock(lock)

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
        return await self._retention.trim(channel, before, limit, lock, ignore, groups, ended)

    async def size(self, channel: str) -> Size:
        return await self._retention.size(channel)

    async def set_full(self, channel: str, full: bool) -> None:
        await self._retention.set_full(channel, full)

    async def forget(self, keys: datetime, jobs: datetime, limit: int, lock: Lock | None) -> Forgotten:
        return await self._retention.forget(keys, jobs, limit, lock)

    async def purge_dead(self, channel: str, before: datetime, limit: int, lock: Lock) -> dict[str, int]:
        return await self._retention.purge_dead(channel, before, limit, lock)

    async def groups(self, alive: timedelta) -> list[Group]:
        return await self._groups.groups(alive)

    async def reclaim(self, group: Group, alive: timedelta, limit: int, lock: Lock) -> int:
        return await self._groups.reclaim(group, alive, limit, lock)

    async def remove_group(self, group: Group, alive: timedelta, lock: Lock | None) -> bool:
        return await self._groups.remove_group(group, alive, lock)

    async def put_record(
        self, key: str, fields: Mapping[str, str], expected: int, due: datetime | None = None
    ) -> int | None:
        return await self._records.put_record(key, fields, expected, due)

    async def record(self, key: str) -> Record | None:
        return await self._records.record(key)

    async def remove_record(self, key: str, expected: int) -> bool:
        return await self._records.remove_record(key, expected)

    async def due_records(
        self, prefix: str, limit: int, *, newest: bool = False, after: tuple[datetime, str] | None = None
    ) -> list[Record]:
        return await self._records.due_records(prefix, limit, newest, after)


def _milliseconds(kept: Duration | None, what: str) -> int | None:
    return None if kept is None else max(parse_duration(kept, what=what) // _MILLISECOND, 1)
