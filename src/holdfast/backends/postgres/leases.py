"""Leases: claim, complete, retry, bury, extend."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import Any, TypeVar

import orjson

from holdfast.backends.postgres.arrays import NumberArray, TextArray
from holdfast.backends.postgres.operators import number
from holdfast.backends.postgres.session import Session
from holdfast.model.event import Event
from holdfast.model.job import Burial, Failure, Job, Retry

log = logging.getLogger(__name__)

T = TypeVar("T")
Accepted = set[tuple[int, int]]  # seq and token
_POSITION = "%04x-%016x-%016x"  # of epoch, tx and seq: format_position(), but for every job of every claim
_PAUSES = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2)


class Leases:
    """The transitions of leased jobs, each fenced by the job's token."""

    def __init__(self, session: Session) -> None:
        self._session = session

    async def claim(
        self, channel: str, consumer: str, limit: int, worker: str, *, ordered: bool
    ) -> list[Job]:
        """Lease a batch: in one statement, but for stretches, which are taken from one by one.

        Raises only where nothing was leased: what is leased is returned, whatever happens after it.
        """
        names = {"channel": channel, "consumer": consumer, "worker": worker}
        if ordered:
            rows = await self._session.rows("claim_ordered", limit=limit, **names)
            return [_job(channel, consumer, row) for row in rows]
        jobs: list[Job] = []
        pauses = iter(_PAUSES)
        while len(jobs) < limit:
            try:
                rows = await self._session.rows("claim", limit=limit - len(jobs), **names)
            except Exception as error:
                if not jobs:
                    raise
                log.warning("%s/%s: a claim was cut short: %s", channel, consumer, error)
                break  # what is leased already must be handed out, whatever is wrong
            found = [_job(channel, consumer, row) for row in rows if row[2] is not None]
            jobs += found
            ask_again = rows[0][-1]
            if not ask_again:
                break
            if not found:
                # Others change these rows at this moment: what they leave is there in the next statement.
                if jobs or (pause := next(pauses, None)) is None:
                    break
                await asyncio.sleep(pause)
        return jobs

    async def complete(self, jobs: Sequence[Job]) -> list[bool]:
        """leased → done."""

        async def end(of: dict[str, str], mine: Sequence[Job]) -> Accepted:
            return await self._accepted("complete", of, mine)

        return await _per_consumer(jobs, lambda job: job, end)

    async def extend(self, jobs: Sequence[Job], by: timedelta) -> list[bool]:
        """Move the deadlines to now plus `by`."""

        async def move(of: dict[str, str], mine: Sequence[Job]) -> Accepted:
            return await self._accepted("extend", of, mine, by=by)

        return await _per_consumer(jobs, lambda job: job, move)

    async def retry(self, retries: Sequence[Retry]) -> list[bool]:
        """leased → scheduled | ready."""

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
        """leased → dead."""

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
    """One statement per consumer; the answers come back in the order of the items."""
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


def _job(channel: str, consumer: str, row: tuple[Any, ...]) -> Job:
    return Job(str(row[2]), channel, consumer, Event(*row[7:14]), _POSITION % row[:3], *row[3:7])


def _seq(job: Job) -> int:
    """The number of a job; 0, which none has, for an id that this store never gave."""
    return number(job.id) or 0


def error_entry(failure: Failure | None, attempt: int) -> str | None:
    """One attempt's error as it is kept with the job."""
    if failure is None:
        return None
    entry = {"attempt": attempt, "error": failure.error, "kind": failure.kind}
    return orjson.dumps(entry | {"fingerprint": failure.fingerprint}).decode()
