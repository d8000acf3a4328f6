"""Leases: claim, complete, retry, bury, extend."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any

import orjson

from holdfast.backends.redis import keys
from holdfast.backends.redis.codec import decode, from_micros, patched, position, to_micros
from holdfast.backends.redis.link import Argument
from holdfast.backends.redis.session import Session
from holdfast.model.decide import describe
from holdfast.model.errors import HoldfastError, NotFound
from holdfast.model.job import Burial, Failure, Job, Reason, Retry

_MOST = 2_000  # jobs in one script: the server does nothing else meanwhile
_ONE = ord("1")
_LOST = describe("its event was removed from the log by another client")


class Leases:
    """The transitions of leased jobs, each fenced by the job's token."""

    def __init__(self, session: Session) -> None:
        self._session = session

    async def claim(self, channel: str, consumer: str, limit: int, worker: str) -> list[Job]:
        """Lease a batch in one script, then fetch the events. Where that fails, the jobs are given back."""
        owner = f"{channel}/{consumer}"
        try:
            until, *rows = await self._session.run("claim", owner, limit, worker)
        except NotFound:
            raise no_consumer(channel, consumer) from None
        try:
            return await self._jobs(channel, consumer, from_micros(until), rows)
        except Exception:
            released = [(owner, entry, token, "", b"") for entry, _, _, _, token, *_ in rows]
            with suppress(HoldfastError):  # a store that is gone lets the leases run out
                await settle(self._session, "retry", released)
            raise

    async def _jobs(
        self, channel: str, consumer: str, deadline: datetime, rows: Sequence[Sequence[Any]]
    ) -> list[Job]:
        """What was leased, with its events."""
        kept = {row[0]: row[5] for row in rows if row[5] is not None}
        entries = kept | await self._entries(channel, [row[0] for row in rows if row[5] is None])
        jobs = [
            Job(
                entry.decode(),
                channel,
                consumer,
                patched(decode(entry, entries.get(entry, ())), *patch),
                position(epoch, entry),
                attempt,
                abandonments,
                token,
                deadline,
            )
            for entry, epoch, attempt, abandonments, token, _, *patch in rows
        ]
        if len(entries) < len(rows):
            jobs = await self._without_lost(jobs, entries)
        return jobs

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

    async def _without_lost(self, jobs: list[Job], entries: Mapping[bytes, Sequence[bytes]]) -> list[Job]:
        """Another client trimmed the log below living jobs: they become dead letters that say so."""
        lost = [job for job in jobs if job.id.encode() not in entries]
        await self.bury([Burial(job, Reason.TERMINAL, _LOST) for job in lost])
        return [job for job in jobs if job not in lost]

    async def complete(self, jobs: Sequence[Job]) -> list[bool]:
        """leased → done."""
        return await settle(self._session, "complete", [_held(job) for job in jobs])

    async def extend(self, jobs: Sequence[Job], by: timedelta) -> list[bool]:
        """Move the deadlines to now plus `by`."""
        return await settle(self._session, "extend", [_held(job) for job in jobs], to_micros(by))

    async def retry(self, retries: Sequence[Retry]) -> list[bool]:
        """leased → scheduled | ready."""
        rows = [
            (*_held(job), "" if delay is None else to_micros(delay), error_entry(failure, job.attempt))
            for job, delay, failure in retries
        ]
        return await settle(self._session, "retry", rows)

    async def bury(self, burials: Sequence[Burial]) -> list[bool]:
        """leased → dead."""
        rows = [
            (*_held(job), reason.value, error_entry(failure, job.attempt), failure.fingerprint)
            for job, reason, failure in burials
        ]
        return await settle(self._session, "bury", rows, "held")


async def settle(
    session: Session, script: str, rows: Sequence[tuple[Argument, ...]], *first: Argument
) -> list[bool]:
    """Which rows a script accepts. It may take fewer than it is given, and gets the others again."""
    answers: list[bool] = []
    while part := rows[len(answers) : len(answers) + _MOST]:
        digits: bytes = await session.run(script, *first, *[value for row in part for value in row])
        answers += [digit == _ONE for digit in digits]
    return answers


def parts(rows: Sequence[tuple[Argument, ...]]) -> Iterator[Sequence[tuple[Argument, ...]]]:
    """As many rows as one script may take at a time."""
    for start in range(0, len(rows), _MOST):
        yield rows[start : start + _MOST]


def no_consumer(channel: str, consumer: str) -> NotFound:
    """What is said of a consumer that does not exist."""
    return NotFound(f"channel {channel!r} has no consumer {consumer!r}; create it with subscribe")


def error_entry(failure: Failure | None, attempt: int) -> bytes:
    """One attempt's error as it is kept with the job; the script adds the time."""
    if failure is None:
        return b""
    entry = {"attempt": attempt, "error": failure.error, "kind": failure.kind}
    return orjson.dumps(entry | {"fingerprint": failure.fingerprint})


def _held(job: Job) -> tuple[str, str, int]:
    return f"{job.channel}/{job.consumer}", job.id, job.token
