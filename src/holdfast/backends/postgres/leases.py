"""Jobs: claimed and ended by workers under their tokens, changed and looked at by operators."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import Any, TypeVar

import orjson

from holdfast.backends.postgres.arrays import NumberArray, TextArray
from holdfast.backends.postgres.channels import Channels
from holdfast.backends.postgres.session import Session
from holdfast.model.errors import InvalidInput
from holdfast.model.event import Event
from holdfast.model.job import Burial, Failure, Job, JobRecord, Retry
from holdfast.model.position import format_position
from holdfast.model.states import State

T = TypeVar("T")
Accepted = set[tuple[int, int]]  # seq and token
_POSITION = "%04x-%016x"  # of epoch and seq: format_position(), but for every job of every claim


class Leases:
    """The transitions of leased jobs, each fenced by the job's token."""

    def __init__(self, session: Session, channels: Channels) -> None:
        self._session, self._channels = session, channels

    async def claim(self, channel: str, consumer: str, limit: int, worker: str) -> list[Job]:
        names = {"channel": channel, "consumer": consumer}
        while True:
            rows = await self._session.rows("claim", limit=limit, worker=worker, **names)
            if not rows:
                await self._channels.consumer(channel, consumer)  # or there is none
            # A row without a job says that more has to be taken up first.
            if not rows or rows[0][1] is not None:
                return [_job(names, row) for row in rows]

    async def complete(self, jobs: Sequence[Job]) -> list[bool]:
        async def end(of: dict[str, str], mine: Sequence[Job]) -> Accepted:
            by_token: dict[int, set[int]] = defaultdict(set)
            for job in mine:
                by_token[job.token].add(_seq(job))
            rows = await self._session.rows(
                "complete",
                tokens=NumberArray(by_token),
                counts=[len(seqs) for seqs in by_token.values()],
                seqs=NumberArray(seq for seqs in by_token.values() for seq in sorted(seqs)),
                **of,
            )
            return {(seq, token) for token, seqs in by_token.items() for seq in seqs} - set(rows)

        return await _per_consumer(jobs, lambda job: job, end)

    async def extend(self, jobs: Sequence[Job], by: timedelta) -> list[bool]:
        async def move(of: dict[str, str], mine: Sequence[Job]) -> Accepted:
            return await self._accepted("extend", of, mine, by=by)

        return await _per_consumer(jobs, lambda job: job, move)

    async def retry(self, retries: Sequence[Retry]) -> list[bool]:
        async def back(of: dict[str, str], mine: Sequence[Retry]) -> Accepted:
            return await self._accepted(
                "retry",
                of,
                [retry.job for retry in mine],
                delays=[retry.delay for retry in mine],
                errors=TextArray([error_entry(retry.failure, retry.job.attempt) for retry in mine]),
            )

        return await _per_consumer(retries, lambda retry: retry.job, back)

    async def bury(self, burials: Sequence[Burial]) -> list[bool]:
        async def under(of: dict[str, str], mine: Sequence[Burial]) -> Accepted:
            return await self._accepted(
                "bury",
                of,
                [burial.job for burial in mine],
                reasons=TextArray([burial.reason for burial in mine]),
                errors=TextArray([error_entry(burial.failure, burial.job.attempt) for burial in mine]),
                fingerprints=TextArray([burial.failure.fingerprint for burial in mine]),
            )

        return await _per_consumer(burials, lambda burial: burial.job, under)

    async def cancel(self, channel: str, source: str, event_id: str, consumer: str | None) -> int:
        row = await self._session.row(
            "cancel", channel=channel, source=source, id=event_id, consumer=consumer
        )
        return int(row[0]) if row else 0

    async def requeue(self, channel: str, consumer: str, job_id: str) -> bool:
        seq = number(job_id)
        if seq is None:
            raise InvalidInput(f"job id {job_id!r} is not a number; 'holdfast jobs show' prints it")
        row = await self._session.row("requeue", channel=channel, consumer=consumer, seq=seq)
        return bool(row and row[0])

    async def stuck(self, limit: int) -> list[JobRecord]:
        return [record(row) for row in await self._session.rows("stuck", limit=limit)]

    async def find_jobs(self, channel: str, source: str, event_id: str) -> list[JobRecord]:
        rows = await self._session.rows("find_jobs", channel=channel, source=source, id=event_id)
        return [record(row) for row in rows]

    async def job(self, channel: str, consumer: str, job_id: str) -> JobRecord | None:
        seq = number(job_id)
        if seq is None:
            return None
        row = await self._session.row("job", channel=channel, consumer=consumer, seq=seq)
        return record(row) if row else None

    async def _accepted(self, query: str, of: dict[str, str], jobs: Sequence[Job], **more: Any) -> Accepted:
        seqs = NumberArray([_seq(job) for job in jobs])
        tokens = NumberArray([job.token for job in jobs])
        rows = await self._session.rows(query, seqs=seqs, tokens=tokens, **of, **more)
        return {(row[0], row[1]) for row in rows}


async def _per_consumer(
    items: Sequence[T],
    job_of: Callable[[T], Job],
    apply: Callable[[dict[str, str], Sequence[T]], Awaitable[Accepted]],
) -> list[bool]:
    """One statement per consumer; the results come back in the order of the items."""
    groups: dict[tuple[str, str], list[T]] = defaultdict(list)
    for item in items:
        job = job_of(item)
        groups[job.channel, job.consumer].append(item)
    accepted: dict[tuple[str, str], Accepted] = {}
    for (channel, consumer), mine in groups.items():
        accepted[channel, consumer] = await apply({"channel": channel, "consumer": consumer}, mine)
    if sum(map(len, accepted.values())) == len(items):
        return [True] * len(items)
    jobs = (job_of(item) for item in items)
    return [(_seq(job), job.token) in accepted[job.channel, job.consumer] for job in jobs]


def _job(names: dict[str, str], row: tuple[Any, ...]) -> Job:
    return Job(
        str(row[1]), names["channel"], names["consumer"], Event(*row[6:13]), _POSITION % row[:2], *row[2:6]
    )


def _seq(job: Job) -> int:
    """The number of a job; 0, which none has, for an id that this store never gave."""
    return number(job.id) or 0


def error_entry(failure: Failure | None, attempt: int) -> str | None:
    """One attempt's error as it is kept with the job."""
    if failure is None:
        return None
    entry = {"attempt": attempt, "error": failure.error, "kind": failure.kind}
    return orjson.dumps(entry | {"fingerprint": failure.fingerprint}).decode()


def number(job_id: str) -> int | None:
    """The number that a job's id is; None where it is none that this store gave."""
    return int(job_id) if job_id.isascii() and job_id.isdigit() and len(job_id) <= 18 else None


def record(row: tuple[Any, ...]) -> JobRecord:
    """A job as an operator sees it, from a row that begins with its number, its names and its state."""
    seq, channel, consumer, state, event_id, source, epoch, *rest = row
    position = format_position(epoch, seq)
    return JobRecord(str(seq), channel, consumer, State(state), event_id or "", source or "", position, *rest)
