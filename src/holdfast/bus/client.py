"""The client: the verbs of the bus over one store or several."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Callable, Sequence
from datetime import datetime
from types import TracebackType
from typing import Any, Self

from holdfast import tracing
from holdfast.bus.finalize import FailedAttempt, Finalizer
from holdfast.bus.partitions import Partition, Partitions, Subscription
from holdfast.bus.publish import Publisher
from holdfast.bus.schedules import DEFAULT_MISSED, DEFAULT_MOST, Schedules
from holdfast.bus.schemas import Schemas, schema_of
from holdfast.bus.spool import Spool
from holdfast.contracts import STORE_ERRORS, Backend, Consumer, Start, raise_if_cancelled
from holdfast.model.decide import describe
from holdfast.model.duration import parse_duration
from holdfast.model.errors import Duration, HoldfastError, InvalidInput, LeaseLost, Terminal, Unavailable
from holdfast.model.event import (
    DEFAULT_SOURCE,
    DEFAULT_TYPE,
    Event,
    LogEntry,
    Receipt,
    check_event,
    check_types,
)
from holdfast.model.job import Job, JobRecord, Retry, check_cancellation
from holdfast.model.names import check_name
from holdfast.model.policy import Policy
from holdfast.model.schema import DeclaredSchema
from holdfast.upkeep.schedules import Schedule

log = logging.getLogger(__name__)


class Bus:
    """Publish, poll, finalize. Use it as an async context manager; it is made by `holdfast.connect`."""

    def __init__(
        self,
        backends: Sequence[Backend],
        on_close: Callable[[], None] | None = None,
        spool: Spool | None = None,
        namespace: str = "gbe",
    ) -> None:
        self.partitions = Partitions(backends, namespace)
        self.finalizer = Finalizer(self.partitions)
        self.counters = self.finalizer.counters
        self.scheduling = Schedules(self.partitions, namespace)
        self.namespace = namespace
        self.name = f"{socket.gethostname()}:{os.getpid()}"
        self.spool = spool
        self._publisher = Publisher(self.partitions, spool)
        self._on_close = on_close
        self._releasing: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        try:
            try:
                await self.partitions.open()
            except Unavailable:
                if self.spool is None:
                    raise
            await self._publisher.open()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Give every connection back; an embedded server is left to its last user."""
        await self._publisher.close()
        if self._releasing:
            await asyncio.wait(self._releasing)
        await self.partitions.close()
        if self._on_close is not None:
            await asyncio.to_thread(self._on_close)

    # channels and consumers

    async def create_channel(self, channel: str) -> None:
        """Make sure that a channel exists; publish and subscribe do it by themselves."""
        check_name(channel)
        for partition in await self._all():
            await partition.backend.channels.create(channel)

    async def declare(self, channel: str, schema: Any, *, force: bool = False) -> DeclaredSchema:
        """Declare what a channel's data looks like: a type that pydantic validates, or a JSON Schema.

        Creates the channel. A schema that refuses what the last one allowed raises `Incompatible`, unless
        forced. Nothing is validated at publishing: handlers do that by their own types.
        """
        wanted = schema_of(schema)
        await self.create_channel(channel)
        return await (await self.schemas()).declare(channel, wanted, force=force)

    async def schema(self, channel: str) -> DeclaredSchema | None:
        """Return the schema that was declared for a channel; None where there is none."""
        return await (await self.schemas()).get(channel)

    async def schemas(self) -> Schemas:
        """Return the schemas of this deployment. They are in its first store."""
        first = await self.partitions.ready(self.partitions.all[0])
        return Schemas(first.backend, self.namespace)

    async def subscribe(
        self, /, channel: str, consumer: str, *, start: Start = "latest", **policy: Any
    ) -> Consumer:
        """Create a worker consumer, or change its policy: see `Policy.of` for the options.

        A new consumer starts at `latest`, `earliest` or a time; older events become jobs in steps that
        empty polls and workers take.
        """
        subscription = _subscription(channel, consumer, policy, start)
        made = [await store.backend.channels.subscribe(*subscription) for store in await self._all()]
        return made[0]

    async def ensure(
        self, /, channel: str, consumer: str, *, start: Start = "latest", **policy: Any
    ) -> Consumer:
        """Like subscribe, but a store that is faulty gets the consumer when it heals. For workers."""
        subscription = _subscription(channel, consumer, policy, start)
        self.partitions.require(subscription)
        made = [
            await store.backend.channels.subscribe(*subscription) for store in await self.partitions.usable()
        ]
        return made[0]

    # publish

    async def publish(
        self,
        channel: str,
        data: Any,
        *,
        id: str | None = None,  # noqa: A002 - CloudEvents' own name
        source: str = DEFAULT_SOURCE,
        type: str = DEFAULT_TYPE,  # noqa: A002 - CloudEvents' own name
        key: str | None = None,
        time: datetime | None = None,
        headers: dict[str, str] | None = None,
        at: datetime | None = None,
        priority: int = 0,
        connection: Any = None,
    ) -> Receipt:
        """Append one event. It is durable when this returns, and a repeat with the same id is a no-op.

        `at` schedules it; a higher `priority` is polled first; `connection` (psycopg, sync or async)
        makes the publish part of the caller's own transaction.
        """
        event = Event(data, id or "", source, type, key, time, headers)
        [receipt] = await self._publisher.publish(channel, [event], at, priority, connection)
        return receipt

    async def publish_many(
        self,
        channel: str,
        events: Sequence[Event],
        *,
        at: datetime | None = None,
        priority: int = 0,
        connection: Any = None,
    ) -> list[Receipt]:
        """Append a batch, all or none on each store. Returns receipts in the order of the events."""
        check_types(events)
        return await self._publisher.publish(channel, events, at, priority, connection)

    # poll and finalize

    async def poll(self, channel: str, consumer: str, *, limit: int = 1) -> list[Job]:
        """Lease up to `limit` jobs; an empty list when there is nothing. Never waits."""
        if limit < 1:
            raise InvalidInput(f"limit {limit} is below 1; ask for at least one job")
        check_name(channel)
        check_name(consumer, "consumer")
        return await self._poll(await self.partitions.usable(), channel, consumer, limit)

    async def poll_at(self, partition: Partition, channel: str, consumer: str, *, limit: int) -> list[Job]:
        """Lease jobs of one store only. For workers."""
        return await self._poll([partition], channel, consumer, limit)

    async def _poll(self, usable: Sequence[Partition], channel: str, consumer: str, limit: int) -> list[Job]:
        """Poll in a task of its own, so that what is leased to a caller cancelled meanwhile is released."""
        polling = asyncio.create_task(self._poll_stores(usable, channel, consumer, limit))
        try:
            return await asyncio.shield(polling)
        except asyncio.CancelledError:
            releasing = asyncio.create_task(self._release_polled(polling))
            self._releasing.add(releasing)
            releasing.add_done_callback(self._releasing.discard)
            raise

    async def _release_polled(self, polling: asyncio.Task[list[Job]]) -> None:
        """Release what a cancelled caller's poll still leases."""
        try:
            jobs = await polling
            await self.finalizer.retry([Retry(job, None) for job in jobs])
        except Exception as error:
            log.warning("a poll was cancelled, and what it leased was not released: %s", error)

    async def _poll_stores(
        self, usable: Sequence[Partition], channel: str, consumer: str, limit: int
    ) -> list[Job]:
        began = tracing.began()
        jobs = await self._claim(usable, channel, consumer, limit)
        # Nobody else may be keeping time: an empty poll, or a second of busy ones, takes one bounded step.
        due = [partition for partition in usable if not jobs or partition.overdue]
        changed = [await self._step(partition) for partition in due]
        if not jobs and any(changed):
            jobs = await self._claim(usable, channel, consumer, limit)
        tracing.received(channel, consumer, jobs, began)
        return jobs

    async def _claim(self, usable: Sequence[Partition], channel: str, consumer: str, limit: int) -> list[Job]:
        """Claim from store after store. An error of one does not cost the jobs that another has leased."""
        jobs: list[Job] = []
        errors: list[BaseException] = []
        for partition in usable:
            try:
                claimed = await partition.backend.leases.claim(
                    channel, consumer, limit - len(jobs), self.name
                )
            except STORE_ERRORS as error:
                raise_if_cancelled(error)
                partition.count_error("claim", error)
                if isinstance(error, Unavailable):
                    partition.health.failed(str(error))
                errors.append(error)
                continue
            for job in claimed:
                job.partition = partition.index
                job.open_transaction = self.finalizer.transaction
            self.counters.began(channel, consumer, len(claimed))
            jobs += claimed
            if len(jobs) >= limit:
                break
        undocumented = [error for error in errors if not isinstance(error, Unavailable)]
        if jobs and undocumented:
            log.warning("%s/%s: poll failed in part: %r", channel, consumer, undocumented[0])
        elif undocumented or len(errors) == len(usable):
            raise (undocumented or errors)[0]
        return jobs

    async def _step(self, partition: Partition) -> int:
        try:
            return (await partition.step()).total
        except HoldfastError:
            return 0  # its health has it already
        except STORE_ERRORS as error:  # what was leased must still be handed out
            raise_if_cancelled(error)
            log.exception("a step of the lifecycle failed")
            return 0

    async def finalize(
        self,
        job: Job,
        *,
        success: bool,
        error: BaseException | str | None = None,
        terminal: bool = False,
        connection: Any = None,
    ) -> None:
        """End an attempt: done, or by policy retried or dead. `terminal` buries at once.

        `connection` (psycopg, sync or async) makes the completion part of the caller's own transaction. Where
        the lease was lost, it raises `LeaseLost`, and that transaction can not be committed any more.
        """
        if connection is None:
            await self.finalize_many([job], success=success, error=error, terminal=terminal)
        elif success:
            await self.finalizer.complete_within(job, connection)
        else:
            raise InvalidInput("only success=True can be part of a transaction; leave out connection")

    async def finalize_many(
        self,
        jobs: Sequence[Job],
        *,
        success: bool,
        error: BaseException | str | None = None,
        terminal: bool = False,
    ) -> None:
        """End many attempts at once. Stale ones raise `LeaseLost` after the others were applied."""
        if success:
            accepted = await self.finalizer.complete(jobs)
        else:
            failure = describe("failed" if error is None else error)
            terminal = terminal or isinstance(error, Terminal)
            accepted = await self.finalizer.fail([FailedAttempt(job, failure, terminal) for job in jobs])
        _raise_lost(jobs, accepted)

    async def extend(self, job: Job, by: Duration) -> None:
        """Move a lease's deadline to now plus `by`."""
        _raise_lost([job], await self.finalizer.extend([job], parse_duration(by)))

    async def release(self, job: Job) -> None:
        """Give a job back untouched: ready at once, in its old place, no budget spent."""
        _raise_lost([job], await self.finalizer.retry([Retry(job, None)]))

    async def snooze(self, job: Job, delay: Duration) -> None:
        """Give a job back for later: no budget spent."""
        _raise_lost([job], await self.finalizer.retry([Retry(job, parse_duration(delay))]))

    # schedules

    async def schedule(
        self,
        name: str,
        channel: str,
        *,
        cron: str | None = None,
        every: Duration | None = None,
        tz: str | None = None,
        data: Any = None,
        type: str = DEFAULT_TYPE,  # noqa: A002 - CloudEvents' own name
        key: str | None = None,
        headers: dict[str, str] | None = None,
        priority: int = 0,
        jitter: Duration = 0,
        missed: str = DEFAULT_MISSED,
        max_missed: int = DEFAULT_MOST,
    ) -> Schedule:
        """Publish an event at each tick of `cron` (in the time zone `tz`) or `every` so often, once each.

        Creates the schedule or changes it; one that says the same already stays as it is. `missed` says what
        becomes of ticks while nobody kept time: `skip`, `once` (the latest) or `all` (the latest
        `max_missed`). `jitter` delays each tick by up to so much, always the same for one tick.
        """
        return await self.scheduling.put(
            name,
            channel,
            cron=cron,
            every=every,
            tz=tz,
            data=data,
            type=type,
            key=key,
            headers=headers,
            priority=priority,
            jitter=jitter,
            missed=missed,
            max_missed=max_missed,
        )

    async def schedules(self, channel: str | None = None) -> list[Schedule]:
        """Return all schedules, of one channel or of all, the next one that is due first."""
        return await self.scheduling.all(channel)

    async def pause_schedule(self, name: str, channel: str) -> Schedule:
        """Publish no more ticks of a schedule until it is resumed."""
        return await self.scheduling.pause(name, channel)

    async def resume_schedule(self, name: str, channel: str) -> Schedule:
        """Go on with the first tick after now."""
        return await self.scheduling.resume(name, channel)

    async def remove_schedule(self, name: str, channel: str) -> None:
        """Remove a schedule for good. Raises `NotFound`."""
        await self.scheduling.remove(name, channel)

    async def run_schedule(
        self,
        name: str,
        channel: str,
        *,
        id: str | None = None,  # noqa: A002 - CloudEvents' own name
    ) -> Receipt:
        """Publish what a tick of a schedule would, now. A repeat with the same id changes nothing."""
        return await self.scheduling.run(name, channel, id)

    # operators

    async def cancel(
        self,
        channel: str,
        id: str,  # noqa: A002 - CloudEvents' own name
        *,
        source: str = DEFAULT_SOURCE,
        consumer: str | None = None,
        running: bool = False,
        by: str | None = None,
        reason: str | None = None,
    ) -> int:
        """Cancel an event's waiting jobs, of one consumer or of all; returns how many there were.

        With `running` also those that a worker has: its lease is lost at once, so that its answer is refused,
        and its handler is told to stop, but what that has done stays done. `by` and `reason` are kept with
        the job; whoever is named, and with `running` everybody, is in the audit.
        """
        check_name(channel)
        check_event(Event(b"", id, source))
        if consumer is not None:
            check_name(consumer, "consumer")
        how = check_cancellation(running, self.name if running and by is None else by, reason)
        cancelled = 0
        try:
            for store in await self._all():
                cancelled += await store.backend.leases.cancel(channel, source, id, consumer, how)
        finally:
            if cancelled and how.by is not None:
                await self._audit(how.by, f"{channel}/{consumer or '*'}/{id}", cancelled, how.reason)
        return cancelled

    async def _audit(self, actor: str, target: str, cancelled: int, reason: str | None) -> None:
        """Note a cancellation. That it is done is true also where this fails: each job's record tells it."""
        from holdfast.upkeep.announcements import Audited, announce  # most programs do without pydantic

        outcome = f"{cancelled} cancelled" + (f": {reason}" if reason else "")
        audited = Audited(actor=actor, action="cancel jobs", target=target, outcome=outcome)
        first = self.partitions.all[0]
        try:
            await announce(first.backend, first.namespace, audited)
        except STORE_ERRORS as error:
            raise_if_cancelled(error)
            log.warning("%s cancelled %s, which is missing in the audit: %r", actor, target, error)

    async def requeue(self, channel: str, consumer: str, job_id: str, *, partition: int = 0) -> bool:
        """Make a dead or live job ready again; a lease that still runs on it is lost."""
        check_name(channel)
        check_name(consumer, "consumer")
        store = await self.partitions.ready(self.partitions.all[partition])
        return await store.backend.leases.requeue(channel, consumer, job_id)

    async def find_jobs(
        self,
        channel: str,
        id: str,  # noqa: A002 - CloudEvents' own name
        *,
        source: str = DEFAULT_SOURCE,
    ) -> list[JobRecord]:
        """Return an event's job for every consumer, live or terminal."""
        check_name(channel)
        check_event(Event(b"", id, source))
        found = [await store.backend.leases.find_jobs(channel, source, id) for store in await self._all()]
        return [record for records in found for record in records]

    async def read(
        self, channel: str, *, after: str | None = None, limit: int = 1000, partition: int = 0
    ) -> list[LogEntry]:
        """Return a page of one store's log after a position, never past what may still commit below."""
        check_name(channel)
        store = await self.partitions.ready(self.partitions.all[partition])
        return await store.backend.log.read(channel, after, limit)

    async def _all(self) -> list[Partition]:
        return [await self.partitions.ready(partition) for partition in self.partitions.all]


def _subscription(channel: str, consumer: str, policy: dict[str, Any], start: Start) -> Subscription:
    check_name(channel)
    check_name(consumer, "consumer")
    if isinstance(start, datetime):
        if start.tzinfo is None:
            raise InvalidInput(f"start {start} has no time zone; pass an aware datetime")
    elif start not in ("latest", "earliest"):
        raise InvalidInput(f"start {start!r} is unknown; use 'latest', 'earliest' or a time with a zone")
    try:
        return channel, consumer, Policy.of(**policy), start
    except TypeError as error:
        raise InvalidInput(f"unknown option for consumer {consumer!r}: {error}") from None


def _raise_lost(jobs: Sequence[Job], accepted: Sequence[bool]) -> None:
    lost = [job.id for job, yes in zip(jobs, accepted, strict=True) if not yes]
    if lost:
        raise LeaseLost(lost)
