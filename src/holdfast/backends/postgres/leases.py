"""Jobs: claimed and ended by workers under their tokens, changed and looked at by operators."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from itertools import repeat
from typing import Any, TypeVar

import orjson

from holdfast.backends.postgres import callers
from holdfast.backends.postgres.arrays import NumberArray, TextArray
from holdfast.backends.postgres.channels import Channels
from holdfast.backends.postgres.session import Session
from holdfast.backends.postgres.transactions import JobTransaction, Transactions, completion, lease
from holdfast.contracts import WAITING_ONLY
from holdfast.model.errors import InvalidInput
from holdfast.model.event import EventColumns
from holdfast.model.gc_pause import gc_disabled
from holdfast.model.job import Burial, Cancellation, Completion, Failure, Job, JobRecord, Retry, Transaction
from holdfast.model.position import format_position
from holdfast.model.states import State

T = TypeVar("T")
Refused = set[tuple[int, int]]  # seq and token
_POSITION = "%04x-%016x"  # of epoch and seq: format_position(), but for every job of every claim
_NO_HEADERS: dict[str, str] = {}
_COMPLETION = {True: Completion.DONE, None: Completion.OPEN, False: Completion.NONE}


class Leases:
    """The transitions of leased jobs, each fenced by the job's token."""

    def __init__(self, session: Session, channels: Channels, transactions: Transactions) -> None:
        self._session, self._channels, self._transactions = session, channels, transactions

    async def claim(self, channel: str, consumer: str, limit: int, worker: str) -> list[Job]:
        while True:
            rows = await self._session.rows(
                "claim", channel=channel, consumer=consumer, limit=limit, worker=worker
            )
            if not rows:
                await self._channels.consumer(channel, consumer)  # or there is none
            # A row without a job says that more has to be taken up first.
            if not rows or rows[0][1] is not None:
                return _jobs(channel, consumer, rows)

    async def complete(self, jobs: Sequence[Job]) -> list[bool]:
        async def end(of: dict[str, str], mine: Sequence[Job]) -> Refused:
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
            return set(rows)

        return await _per_consumer(jobs, lambda job: job, end)

    async def complete_within(self, job: Job, connection: Any) -> None:
        prepared = await self._session.row("prepare_completion", **lease(job))
        assert prepared is not None  # noqa: S101 - a function with OUT parameters always returns a row
        await callers.row(connection, "complete_within", completion(job, prepared), self._session.url)

    def transaction(self, job: Job, completed: Callable[[], None]) -> Transaction:
        return JobTransaction(self._transactions, job, completed)

    async def completions(self, jobs: Sequence[Job]) -> list[Completion]:
        found: dict[tuple[str, str, int, int], Completion] = {}
        for (channel, consumer), mine in _grouped(jobs, lambda job: job).items():
            arrays = {
                "seqs": NumberArray([_seq(job) for job in mine]),
                "tokens": NumberArray([job.token for job in mine]),
            }
            rows = await self._session.rows("completions", channel=channel, consumer=consumer, **arrays)
            found |= {(channel, consumer, *row[:2]): _COMPLETION[row[2]] for row in rows}
        return [found[job.channel, job.consumer, _seq(job), job.token] for job in jobs]

    async def extend(self, jobs: Sequence[Job], by: timedelta) -> list[bool]:
        async def move(of: dict[str, str], mine: Sequence[Job]) -> Refused:
            return await self._refused("extend", of, mine, by=by)

        return await _per_consumer(jobs, lambda job: job, move)

    async def retry(self, retries: Sequence[Retry]) -> list[bool]:
        async def back(of: dict[str, str], mine: Sequence[Retry]) -> Refused:
            return await self._refused(
                "retry",
                of,
                [retry.job for retry in mine],
                delays=[retry.delay for retry in mine],
                errors=TextArray([error_entry(retry.failure, retry.job.attempt) for retry in mine]),
            )

        return await _per_consumer(retries, lambda retry: retry.job, back)

    async def bury(self, burials: Sequence[Burial]) -> list[bool]:
        async def under(of: dict[str, str], mine: Sequence[Burial]) -> Refused:
            return await self._refused(
                "bury",
                of,
                [burial.job for burial in mine],
                reasons=TextArray([burial.reason for burial in mine]),
                errors=TextArray([error_entry(burial.failure, burial.job.attempt) for burial in mine]),
                fingerprints=TextArray([burial.failure.fingerprint for burial in mine]),
            )

        return await _per_consumer(burials, lambda burial: burial.job, under)

    async def cancel(
        self,
        channel: str,
        source: str,
        event_id: str,
        consumer: str | None,
        how: Cancellation = WAITING_ONLY,
    ) -> int:
        rows = await self._session.in_turn(
            "cancel", channel=channel, source=source, id=event_id, consumer=consumer, **how._asdict()
        )
        return int(rows[0][0])

    async def cancel_waiting(self, channel: str, consumer: str, limit: int) -> int:
        while True:
            [(cancelled, more)] = await self._session.in_turn(
                "cancel_waiting", channel=channel, consumer=consumer, limit=limit
            )
            if cancelled is None:
                await self._channels.consumer(channel, consumer)  # or there is none
            elif not more:
                return int(cancelled)

    async def requeue(self, channel: str, consumer: str, job_id: str) -> bool:
        seq = number(job_id)
        if seq is None:
            raise InvalidInput(f"job id {job_id!r} is not a number; 'holdfast jobs show' prints it")
        rows = await self._session.in_turn("requeue", channel=channel, consumer=consumer, seq=seq)
        return bool(rows[0][0])

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

    async def _refused(self, query: str, of: dict[str, str], jobs: Sequence[Job], **more: Any) -> Refused:
        """Run a statement that returns the jobs it changed."""
        seqs, tokens = [_seq(job) for job in jobs], [job.token for job in jobs]
        arrays = {"seqs": NumberArray(seqs), "tokens": NumberArray(tokens)}
        changed = {(row[0], row[1]) for row in await self._session.rows(query, **arrays, **of, **more)}
        return set(zip(seqs, tokens, strict=True)) - changed


async def _per_consumer(
    items: Sequence[T],
    job_of: Callable[[T], Job],
    apply: Callable[[dict[str, str], Sequence[T]], Awaitable[Refused]],
) -> list[bool]:
    """One statement per consumer; the results come back in the order of the items."""
    refused: dict[tuple[str, str], Refused] = {}
    for (channel, consumer), mine in _grouped(items, job_of).items():
        refused[channel, consumer] = await apply({"channel": channel, "consumer": consumer}, mine)
    if not any(refused.values()):
        return [True] * len(items)
    jobs = (job_of(item) for item in items)
    return [(_seq(job), job.token) not in refused[job.channel, job.consumer] for job in jobs]


def _grouped(items: Sequence[T], job_of: Callable[[T], Job]) -> dict[tuple[str, str], list[T]]:
    groups: dict[tuple[str, str], list[T]] = defaultdict(list)
    for item in items:
        job = job_of(item)
        groups[job.channel, job.consumer].append(item)
    return groups


def _jobs(channel: str, consumer: str, rows: Sequence[tuple[Any, ...]]) -> list[Job]:
    """The jobs of a claim: column by column, since it is done for each of them."""
    if not rows:
        return []
    with gc_disabled():
        epochs, seqs, attempts, abandonments, tokens, deadlines, *columns, headers = zip(*rows, strict=True)
        events = EventColumns([*columns, [each or _NO_HEADERS for each in headers]])[:]
        positions = map(_POSITION.__mod__, zip(epochs, seqs, strict=True))
        ids, channels, consumers = map(str, seqs), repeat(channel), repeat(consumer)
        return list(
            map(Job, ids, channels, consumers, events, positions, attempts, abandonments, tokens, deadlines)
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
