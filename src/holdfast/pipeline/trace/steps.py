"""The steps of an event's life, as values: what a job, a batch or a failed record tells, in order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from holdfast.model.job import LIVE, JobRecord, State
from holdfast.pipeline.wal.entries import BatchStatus
from holdfast.pipeline.wal.records import Act, Attempt, Failure
from holdfast.pipeline.warehouse.contract import Standing

PUBLISHED, ARCHIVED = "published", "archived"
_FIRST = (PUBLISHED, ARCHIVED)
_LONG_AGO = datetime(1970, 1, 1, tzinfo=UTC)


class Step(NamedTuple):
    """One thing that happened to an event."""

    at: datetime | None
    """None: it is known that it happened, and not when."""
    what: str
    where: str
    """A channel's position, a consumer, an object, a batch, a table."""
    detail: str


class Life(NamedTuple):
    """What is known of one event: the same id from another source, or in another channel, is another one."""

    channel: str
    source: str
    id: str
    steps: Sequence[Step]


def in_order(steps: Iterable[Step]) -> list[Step]:
    """First that it was published, whatever time its publisher gave it; then the archive; then by time."""

    def rank(step: Step) -> tuple[int, datetime]:
        place = _FIRST.index(step.what) if step.what in _FIRST else len(_FIRST)
        return place, step.at or _LONG_AGO

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
    else:
        yield Step(job.ended_at, str(job.state), job.consumer, detail)


def batch_steps(known: BatchStatus, attempts: Sequence[Attempt]) -> Iterator[Step]:
    """What the WAL tells of the batch that an event is in."""
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


def row_step(row: Standing, table: str) -> Step:
    """A row of the warehouse."""
    return Step(row.ingested_at, "in the warehouse", table, f"at {row.position}, with batch {row.batch}")
