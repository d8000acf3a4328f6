"""Jobs: leased and ended under their tokens, changed and looked at by operators."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from datetime import datetime, timedelta
from itertools import repeat
from typing import Any

import orjson

from holdfast.backends.redis import keys
from holdfast.backends.redis.channels import catch_up, no_consumer
from holdfast.backends.redis.codec import (
    NO_HEADERS,
    Mark,
    decode,
    epoch_of,
    from_micros,
    is_time,
    pairs,
    parse_mark,
    patched,
    position,
    positions,
    published_at,
    text,
    to_micros,
)
from holdfast.backends.redis.link import Argument
from holdfast.backends.redis.session import Session
from holdfast.contracts import WAITING_ONLY
from holdfast.model.decide import describe
from holdfast.model.errors import HoldfastError, InvalidInput, NotFound
from holdfast.model.event import Event
from holdfast.model.gc_pause import gc_disabled
from holdfast.model.job import (
    Burial,
    Cancellation,
    Completion,
    Failure,
    Job,
    JobRecord,
    Reason,
    Retry,
    Transaction,
)
from holdfast.model.states import LIVE, State

_log = logging.getLogger(__name__)

MOST_ROWS = 2_000
"""How many jobs one script takes: the server does nothing else meanwhile."""
_CLAIMS = 20  # scripts of one claim, while there is more of the log to go through
_BLOCK = 512  # tokens: the same as in blocks.lua
_ONE, _AGAIN = ord("1"), 2
_NUMBER = "(?:0|[1-9][0-9]{0,19})"
_ID = re.compile(f"{_NUMBER}-{_NUMBER}")  # as the server writes it: another form of it would be another job
_LOST = describe("its event was removed from the log by another client")


class Leases:
    """The transitions of leased jobs, each fenced by the job's token."""

    def __init__(self, session: Session) -> None:
        self._session = session

    async def claim(self, channel: str, consumer: str, limit: int, worker: str) -> list[Job]:
        """Lease a batch in one script, which returns the events too where they are small; else fetch them.
        Where that fails, the jobs are given back."""
        jobs: list[Job] = []
        for _ in range(_CLAIMS):
            try:
                some, again = await self._claim(channel, consumer, limit - len(jobs), worker)
            except Exception:
                if not jobs:
                    raise
                break  # what was leased before is handed out
            jobs += some
            if not again:
                break
        return jobs

    async def _claim(self, channel: str, consumer: str, limit: int, worker: str) -> tuple[list[Job], bool]:
        owner = f"{channel}/{consumer}"
        try:
            answer = await self._session.run("leases/claim", owner, limit, worker)
        except NotFound:
            raise no_consumer(channel, consumer) from None
        until, marks, lost, again, blocks, usual, rows = answer
        if lost:
            _log.error(
                "%d events of %s that waited for %s were removed by another client", lost, channel, consumer
            )
        deadline, epochs = from_micros(until), [parse_mark(mark) for mark in marks]
        apart = {row[4] for row in rows if row[7]}
        tokens = [
            token
            for first, size in zip(blocks[::2], blocks[1::2], strict=True)
            for token in range(first, first + size)
            if token not in apart
        ]
        with gc_disabled():
            jobs = _usual_jobs(channel, consumer, deadline, epochs, tokens, usual)
        if not rows:
            return jobs, bool(again)
        try:
            missing = [row[1] for row in rows if row[5] is None]
            entries = await self._entries(channel, missing)
            for place, entry, attempt, abandonments, token, fields, patch, _ in rows:
                event = patched(decode(entry, entries.get(entry, ()) if fields is None else fields), patch)
                where = position(epoch_of(epochs, entry), entry)
                name = entry.decode()
                job = Job(name, channel, consumer, event, where, attempt, abandonments, token, deadline)
                jobs.insert(place, job)
            if len(entries) < len(missing):
                jobs = await self._without_lost(
                    jobs, {entry.decode() for entry in missing} - {entry.decode() for entry in entries}
                )
        except Exception:
            released = {row[1].decode(): row[4] for row in rows} | {job.id: job.token for job in jobs}
            given_back = [(owner, name, token, "", b"") for name, token in released.items()]
            with suppress(HoldfastError):  # a store that is gone lets the leases run out
                await run_rows(self._session, "leases/retry", given_back)
            raise
        return jobs, bool(again)

    async def _entries(self, channel: str, ids: Sequence[bytes]) -> dict[bytes, Sequence[bytes]]:
        """The events of leased jobs. They mostly stand in a row, so that one range has them all."""
        if not ids:
            return {}
        stream = keys.stream(channel)
        found = dict(await self._session.call("XRANGE", stream, ids[0], ids[-1], "COUNT", len(ids)))
        missing = [entry for entry in ids if entry not in found]
        for rows in await self._session.together(*[("XRANGE", stream, entry, entry) for entry in missing]):
            found |= dict(rows)
        return {entry: found[entry] for entry in ids if entry in found}

    async def _without_lost(self, jobs: list[Job], gone: AbstractSet[str]) -> list[Job]:
        """Another client trimmed the log below living jobs: they become dead letters that say so."""
        await self.bury([Burial(job, Reason.TERMINAL, _LOST) for job in jobs if job.id in gone])
        return [job for job in jobs if job.id not in gone]

    async def complete(self, jobs: Sequence[Job]) -> list[bool]:
        return await self._run_jobs("leases/complete", jobs)

    async def extend(self, jobs: Sequence[Job], by: timedelta) -> list[bool]:
        return await self._run_jobs("leases/extend", jobs, to_micros(by))

    async def _run_jobs(self, script: str, jobs: Sequence[Job], *first: Argument) -> list[bool]:
        """Return which jobs a script accepts. Those with successive tokens go together."""
        accepted: list[bool] = []
        for start in range(0, len(jobs), MOST_ROWS):
            arguments: list[Argument] = [*first]
            for run in _runs(jobs[start : start + MOST_ROWS]):
                ids = " ".join([job.id for job in run])
                arguments += (f"{run[0].channel}/{run[0].consumer}", run[0].token, ids)
            digits: bytes = await self._session.run(script, *arguments)
            accepted += [digit == _ONE for digit in digits]
        return accepted

    async def complete_within(self, job: Job, connection: Any) -> None:
        raise _no_transaction(job)

    def transaction(self, job: Job, completed: Callable[[], None]) -> Transaction:
        raise _no_transaction(job)

    async def completions(self, jobs: Sequence[Job]) -> list[Completion]:
        return [Completion.NONE] * len(jobs)

    async def retry(self, retries: Sequence[Retry]) -> list[bool]:
        rows = [
            (*_held(job), "" if delay is None else to_micros(delay), error_entry(failure, job.attempt))
            for job, delay, failure in retries
        ]
        return await run_rows(self._session, "leases/retry", rows)

    async def bury(self, burials: Sequence[Burial]) -> list[bool]:
        rows = [
            (*_held(job), reason.value, error_entry(failure, job.attempt), failure.fingerprint)
            for job, reason, failure in burials
        ]
        return await run_rows(self._session, "leases/bury", rows, "held")

    async def cancel(
        self,
        channel: str,
        source: str,
        event_id: str,
        consumer: str | None,
        how: Cancellation = WAITING_ONLY,
    ) -> int:
        if consumer == "":
            return 0  # no consumer's name, while the script takes it for all of them
        await catch_up(self._session, channel)
        cancelled, again = 0, 1
        while again:
            some, again = await self._session.run(
                *("leases/cancel", channel, source, event_id, consumer or ""),
                *(int(how.running), how.by or "", how.reason or ""),
            )
            cancelled += some
        return cancelled

    async def cancel_waiting(self, channel: str, consumer: str, limit: int) -> int:
        """Each script looks at some jobs. One that met only leased ones, or has more of the log to turn into
        jobs, is followed by another."""
        passed = 0
        while True:
            options = (f"{channel}/{consumer}", passed, MOST_ROWS, limit)
            try:
                cancelled, met, all_seen = await self._session.run("leases/cancel_waiting", *options)
            except NotFound:
                raise no_consumer(channel, consumer) from None
            if cancelled or all_seen or limit < 1:
                return int(cancelled)
            passed += met

    async def requeue(self, channel: str, consumer: str, job_id: str) -> bool:
        if not is_id(job_id):
            raise InvalidInput(f"job id {job_id!r} is not of the form 1700000000000-0; 'jobs show' prints it")
        while (done := await self._session.run("leases/requeue", f"{channel}/{consumer}", job_id)) == _AGAIN:
            pass
        return bool(done)

    async def job(self, channel: str, consumer: str, job_id: str) -> JobRecord | None:
        if not is_id(job_id):
            return None
        rows = await self._session.run("leases/jobs", "job", f"{channel}/{consumer}", job_id)
        return record_of(*rows[0]) if rows else None

    async def stuck(self, limit: int) -> list[JobRecord]:
        return [record_of(*row) for row in await self._session.run("leases/jobs", "stuck", limit)]

    async def find_jobs(self, channel: str, source: str, event_id: str) -> list[JobRecord]:
        await catch_up(self._session, channel)
        rows = await self._session.run("leases/jobs", "event", channel, source, event_id)
        return sorted((record_of(*row) for row in rows), key=lambda job: job.consumer)


async def run_rows(
    session: Session, script: str, rows: Sequence[tuple[Argument, ...]], *first: Argument
) -> list[bool]:
    """Return which rows a script accepts. It may take fewer than it is given, and gets the others again."""
    accepted: list[bool] = []
    while part := rows[len(accepted) : len(accepted) + MOST_ROWS]:
        digits: bytes = await session.run(script, *first, *[value for row in part for value in row])
        accepted += [digit == _ONE for digit in digits]
    return accepted


def _usual_jobs(
    channel: str,
    consumer: str,
    deadline: datetime,
    epochs: Sequence[Mark],
    tokens: Sequence[int],
    flat: list[Any],
) -> list[Job]:
    """The jobs of a block whose events have nothing unusual: column by column, since it is done for each."""
    entries, names, sources, kinds, published, data, keys = (flat[column::7] for column in range(7))
    times = [_published(entry, time) for entry, time in zip(entries, published, strict=True)]
    texts = [None if key is None else text(key) for key in keys]
    columns = data, map(text, names), map(text, sources), map(text, kinds), texts, times, repeat(NO_HEADERS)
    events = map(tuple.__new__, repeat(Event), zip(*columns, strict=False))
    places = positions(epochs, entries)
    ids = map(bytes.decode, entries)
    same = repeat(channel), repeat(consumer)
    return list(map(Job, ids, *same, events, places, repeat(1), repeat(0), tokens, repeat(deadline)))


def _published(entry: bytes, time: bytes) -> datetime:
    return from_micros(time) if is_time(time) else published_at(entry, ())


def _runs(jobs: Sequence[Job]) -> Iterator[Sequence[Job]]:
    """Yield jobs of one consumer with successive tokens, none beyond its block."""
    start = 0
    for index in range(1, len(jobs) + 1):
        if index < len(jobs):
            last, job = jobs[index - 1], jobs[index]
            if (
                job.token == last.token + 1
                and job.token % _BLOCK
                and job.consumer == last.consumer
                and job.channel == last.channel
            ):
                continue
        yield jobs[start:index]
        start = index


def error_entry(failure: Failure | None, attempt: int) -> bytes:
    """One attempt's error as it is kept with the job; the script adds the time."""
    if failure is None:
        return b""
    entry = {"attempt": attempt, "error": failure.error, "kind": failure.kind}
    return orjson.dumps(entry | {"fingerprint": failure.fingerprint})


def _held(job: Job) -> tuple[str, str, int]:
    return f"{job.channel}/{job.consumer}", job.id, job.token


def is_id(job_id: str) -> bool:
    """Whether a job of this store can have that id."""
    return _ID.fullmatch(job_id) is not None


def record_of(
    channel: bytes, consumer: bytes, entry: bytes, event_id: bytes, source: bytes, flat: list[bytes]
) -> JobRecord:
    """A job as a script shows it."""
    job = pairs(flat)
    state = State(job["state"].decode())

    def number(name: str) -> int:
        return int(job.get(name, 0))

    def time(name: str, shown: bool) -> datetime | None:
        return from_micros(job[name]) if shown and name in job else None

    def text(name: str) -> str | None:
        return job[name].decode() if name in job else None

    return JobRecord(
        entry.decode(),
        channel.decode(),
        consumer.decode(),
        state,
        event_id.decode("utf-8", "replace"),
        source.decode("utf-8", "replace"),
        position(job["epoch"], entry),
        number("attempts"),
        number("abandonments"),
        number("token"),
        number("priority"),
        from_micros(job["created"]),
        time("due", state in LIVE),
        time("lease", state is State.LEASED),
        time("ended", state not in LIVE),
        text("worker"),
        text("reason"),
        _errors(job.get("errors", b"")),
        text("by"),
    )


def _errors(kept: bytes) -> list[dict[str, Any]]:
    """Every attempt's error, with its time as text."""
    errors: list[dict[str, Any]] = orjson.loads(b"[" + kept + b"]")
    return [error | {"at": from_micros(error["at"]).isoformat()} for error in errors]


def _no_transaction(job: Job) -> InvalidInput:
    return InvalidInput(
        f"Redis has no transaction that could complete job {job.id}; end it with finalize(job, success=True) "
        "and make the handler idempotent"
    )
