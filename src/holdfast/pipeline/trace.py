"""Trace: one event id and everything that happened to it, from publish to warehouse or dead letter.

The warehouse knows most events and their positions in the log, and so do the jobs of worker consumers; from
there everything else is looked up at its position. What neither knows is searched for, by a Spark job over
the log, the archive and the WAL.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import reduce
from typing import TYPE_CHECKING, NamedTuple, cast

import orjson

from holdfast.contracts import Backend
from holdfast.model.errors import Damaged, DataLost, NotFound, Unavailable
from holdfast.model.event import DEFAULT_SOURCE
from holdfast.model.job import JobRecord
from holdfast.model.log import Page
from holdfast.model.states import LIVE, State
from holdfast.pipeline.archive.manifests import Manifest
from holdfast.pipeline.archive.objects import Written, text_of
from holdfast.pipeline.connection import Connection
from holdfast.pipeline.failed.failures import failures
from holdfast.pipeline.offsets import ChannelPartition, before
from holdfast.pipeline.reconcile.inputs import Inputs, read_chain, read_inputs
from holdfast.pipeline.session import explain_failure
from holdfast.pipeline.stores import ObjectStore, open_store
from holdfast.pipeline.wal import Wal
from holdfast.pipeline.wal.batch import failed_id
from holdfast.pipeline.wal.records import Act, Attempt, Failure
from holdfast.pipeline.wal.status import BatchStatus, status
from holdfast.pipeline.warehouse import StoredEvent, Warehouse, open_warehouse

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger(__name__)

PUBLISHED, ARCHIVED = "published", "archived"
_FIRST = (PUBLISHED, ARCHIVED)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Step(NamedTuple):
    """One thing that happened to an event."""

    at: datetime | None
    """None: it is known that it happened, and not when."""
    what: str
    where: str
    """A channel's position, a consumer, an object, a batch, a table."""
    detail: str


class EventTrace(NamedTuple):
    """What is known of one event: the same id from another source, or in another channel, is another one."""

    channel: str
    source: str
    id: str
    steps: Sequence[Step]


@dataclass(frozen=True, slots=True)
class TraceQuery:
    """What to look for, and whether to scan."""

    id: str
    channel: str | None = None
    """None: in all channels."""
    source: str | None = None
    """None: from any source."""
    scan: bool = False
    """Also search where the warehouse knows the event: it may have been published more than once."""


class LogPlace(NamedTuple):
    """The place of an event in the log."""

    channel: str
    source: str
    partition: int
    position: str


class Tracer:
    """Finds out where an event went.

    `inputs` returns those of a channel, `spark` starts a session when one is needed.
    """

    def __init__(
        self, urls: Sequence[str], inputs: Callable[[str], Inputs], spark: Callable[[], SparkSession]
    ) -> None:
        self._urls, self._inputs, self._spark = urls, inputs, spark

    def trace(self, query: TraceQuery) -> list[EventTrace]:
        """Every event of that id. Raises `NotFound` where there is none."""
        with Connection(self._urls) as connection:
            names = (connection.run(backend.channels.names()) for backend in connection.backends)
            channels = [query.channel] if query.channel else sorted(set().union(*names))
            inputs = [self._inputs(channel) for channel in channels]
            rows = list(_stored_events(inputs, query.id))
            found = {LogPlace(row.channel, row.source, row.partition, row.position) for row in rows}
            found |= set(_job_places(connection, channels, query))
            found |= set(_failed_places(inputs, found, query))
            if query.scan or not found:
                found |= set(self._search(inputs, query.id))
            wanted = {each for each in found if query.source in (None, each.source)}
            events = sorted({(each.channel, each.source) for each in wanted})
            if not events:
                raise NotFound(
                    f"no trace of the event {query.id!r} in {', '.join(channels) or 'any channel'}"
                )
            return [
                self._trace(connection, query.id, channel, source, wanted, rows) for channel, source in events
            ]

    def _trace(
        self,
        connection: Connection,
        event_id: str,
        channel: str,
        source: str,
        found: Iterable[LogPlace],
        rows: Iterable[StoredEvent],
    ) -> EventTrace:
        inputs, steps = self._inputs(channel), list[Step]()
        wal = inputs.wal()
        manifests = list(read_chain(inputs).manifests)
        for place in sorted(each for each in found if (each.channel, each.source) == (channel, source)):
            steps.append(connection.run(published_step(connection.backends[place.partition], place)))
            if inputs.archive is not None:
                steps += archived_steps(open_store(inputs.archive), manifests, place)
            if wal is not None:
                steps += wal_steps(wal, place)
        for backend in connection.backends:
            for job in connection.run(backend.leases.find_jobs(channel, source, event_id)):
                steps += job_steps(job)
        for row in rows:
            if inputs.plan is not None and (row.channel, row.source) == (channel, source):
                steps.append(row_step(row, inputs.plan.tables.of(channel).name))
        return EventTrace(channel, source, event_id, ordered(steps))

    def _search(self, inputs: Sequence[Inputs], event_id: str) -> Iterator[LogPlace]:
        from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

        with ExitStack() as stack:
            spark = self._spark()

            def matching(each: Inputs) -> DataFrame:
                records = stack.enter_context(read_inputs(spark, each, read_chain(each).objects, None, None))
                return records.where(F.col("id") == event_id).withColumn("channel", F.lit(each.channel))

            frames = [matching(each) for each in inputs]
            if not frames:
                return
            try:
                everything = reduce(lambda one, other: one.unionByName(other), frames)
                hits = everything.select(*LogPlace._fields).distinct().collect()
            except Exception as error:
                raise explain_failure(error) from error
        yield from (LogPlace(*row) for row in hits)


def _stored_events(inputs: Sequence[Inputs], event_id: str) -> Iterator[StoredEvent]:
    """The rows of the warehouses, each queried once."""
    for url in {each.plan.warehouse for each in inputs if each.plan is not None}:
        plans = [each.plan for each in inputs if each.plan is not None and each.plan.warehouse == url]
        channels = [each.channel for each in inputs if each.plan is not None and each.plan.warehouse == url]
        warehouse: Warehouse = open_warehouse(url, plans[0].tables)
        try:
            yield from warehouse.find(event_id, channels)
        except Unavailable as error:
            log.warning("%s; looking elsewhere", error)
        finally:
            warehouse.close()


def _job_places(connection: Connection, channels: Sequence[str], query: TraceQuery) -> Iterator[LogPlace]:
    """The places that the jobs of the event name."""
    source = query.source or DEFAULT_SOURCE
    for channel in channels:
        for partition, backend in enumerate(connection.backends):
            for job in connection.run(backend.leases.find_jobs(channel, source, query.id)):
                yield LogPlace(channel, source, partition, job.position)


def _failed_places(inputs: Sequence[Inputs], found: set[LogPlace], query: TraceQuery) -> Iterator[LogPlace]:
    """Where records of the same events failed by themselves: all failures of the channel are read."""
    for each in inputs:
        wal = each.wal()
        sources = {place.source for place in found if place.channel == each.channel}
        sources |= {query.source or DEFAULT_SOURCE}
        for name in () if wal is None else wal.records.names("failed"):
            batch, _, record = name.partition("/")
            if wal is not None and record.startswith(f"{each.channel}@"):
                match wal.read_failure(batch, record):
                    case Failure() as one if one.id == query.id and one.source in sources:
                        yield LogPlace(one.channel, one.source, one.partition, one.position)


async def published_step(store: Backend, place: LogPlace) -> Step:
    """Its entry in the log, or that it is no longer there."""
    channel, position = place.channel, place.position
    pages = cast("AsyncGenerator[Page]", store.log.pages(channel, before(position), position, 1))
    try:
        async for page in pages:
            if page.positions[-1] == position:
                at = _EPOCH + timedelta(microseconds=page.times[-1])
                key = f", key {page.keys[-1]}" if page.keys[-1] is not None else ""
                detail = f"type {page.types[-1]}{key}, {len(page.data[-1])} bytes"
                return Step(at, PUBLISHED, f"{channel} {position}", detail)
    except DataLost:
        pass
    finally:
        await pages.aclose()
    return Step(None, PUBLISHED, f"{channel} {position}", "no longer in the log: retention has trimmed it")


def archived_steps(store: ObjectStore, manifests: list[Manifest], place: LogPlace) -> Iterator[Step]:
    """The line of the object that holds it. Objects of one commit may cover the same positions."""
    spot = (place.partition, place.channel)
    for manifest in manifests:
        for each in manifest.objects if manifest.spot == spot else ():
            if each.first <= place.position <= each.last:
                try:
                    line = _line(store, each, place.position)
                except Damaged as damage:
                    yield Step(None, ARCHIVED, each.object, str(damage))
                    continue
                if line is not None:
                    yield Step(None, ARCHIVED, each.object, f"line {line} of {each.rows}")


def _line(store: ObjectStore, written: Written, position: str) -> int | None:
    lines = text_of(store, written).splitlines()
    wanted = position.encode()
    for number, line in enumerate(lines, 1):
        if wanted in line and orjson.loads(line)["position"] == position:
            return number
    return None


def wal_steps(wal: Wal, place: LogPlace) -> Iterator[Step]:
    """The batch that holds it, as long as it is kept, and its failure, which is kept for good."""
    for name in sorted({*wal.records.names("pending"), *wal.records.names("confirmed")}):
        if covers(wal, name, place):
            yield from batch_steps(status(wal, name), wal.attempts(name))
    for name in sorted({each.partition("/")[0] for each in wal.records.names("failed")}):
        if not covers(wal, name, place):
            continue
        for failure in failures(wal, name):
            if (failure.channel, failure.partition, failure.position) == (place.channel, *place[2:]):
                failed = failed_id(name, failure.name)
                yield from failure_steps(failed, failure, _acts(wal, name, failed))


def covers(wal: Wal, batch: str, place: LogPlace) -> bool:
    """Whether a batch, as far as it can be read, or a failure that it left has this place in it."""
    spot = ChannelPartition(place.partition, place.channel)
    try:
        return any(part.holds(spot, place.position) for part in wal.parts(batch))
    except (Damaged, NotFound):
        return f"{place.channel}@{place.partition}@{place.position}" in wal.failed_names(batch)


def _acts(wal: Wal, batch: str, failed: str) -> list[Act]:
    folder = f"acts/{batch}/{failed}"
    return [Act.from_json(wal.records.read(f"{folder}/{each}")) for each in wal.records.names(folder)]


def ordered(steps: Iterable[Step]) -> list[Step]:
    """First that it was published, whatever time its publisher gave it; then the archive; then by time."""

    def rank(step: Step) -> tuple[int, datetime]:
        place = _FIRST.index(step.what) if step.what in _FIRST else len(_FIRST)
        return place, step.at or _EPOCH

    return sorted(steps, key=rank)


def job_steps(job: JobRecord) -> Iterator[Step]:
    """Deliveries to one worker consumer. Where the attempts count anew, somebody requeued it."""
    before = 0
    for error in job.errors:
        number, at = int(error["attempt"]), datetime.fromisoformat(str(error["at"]))
        if number <= before:
            yield Step(at, "requeued", job.consumer, "before this attempt: the attempts count anew")
        before = number
        yield Step(at, f"attempt {number}", job.consumer, str(error["error"]))
    if job.attempts < before and job.state is not State.DEAD:
        yield Step(job.due_at, "requeued", job.consumer, "the attempts count anew")
    detail = f"{job.attempts} attempts, {job.abandonments} abandonments"
    if job.state is State.DEAD:
        yield Step(job.ended_at, "dead letter", job.consumer, f"{job.reason}; {detail}")
    elif job.state in LIVE:
        yield Step(job.lease_until or job.due_at, str(job.state), job.consumer, detail)
    elif job.state is State.CANCELLED:
        who = f"by {job.cancelled_by or 'somebody'}" + (f": {job.reason}" if job.reason else "")
        yield Step(job.ended_at, str(job.state), job.consumer, f"{who}; {detail}")
    else:
        yield Step(job.ended_at, str(job.state), job.consumer, detail)


def batch_steps(known: BatchStatus, attempts: Sequence[Attempt]) -> Iterator[Step]:
    """What the WAL records of the batch that an event is in."""
    yield Step(known.created_at, "in the WAL", known.name, f"{known.state}; {known.rows} events")
    for attempt in attempts:
        yield Step(attempt.failed_at, f"load attempt {attempt.number}", known.name, attempt.error)
    if known.confirmation is not None:
        counts = known.confirmation
        detail = f"{counts.inserted} inserted, {counts.duplicates} duplicates, {counts.failed} failed"
        yield Step(counts.confirmed_at, "confirmed", known.name, detail)


def failure_steps(failed: str, failure: Failure, acts: Sequence[Act]) -> Iterator[Step]:
    """A dead letter of the ingest, and what was done about it."""
    why = f"{failure.reason} ({failure.layer}): {failure.error or 'no error'}"
    yield Step(failure.failed_at, "failed event", failed, why)
    for act in acts:
        notes = f": {act.notes}" if act.notes else ""
        yield Step(act.done_at, act.act.replace("_", " "), failed, f"by {act.by}{notes}")


def row_step(row: StoredEvent, table: str) -> Step:
    """A row of the warehouse."""
    return Step(row.ingested_at, "in the warehouse", table, f"at {row.position}, with batch {row.batch}")
