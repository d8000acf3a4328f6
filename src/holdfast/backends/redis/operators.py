"""What operators do to jobs: cancel, requeue, look."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Any

import orjson

from holdfast.backends.redis.codec import from_micros, pairs, position
from holdfast.backends.redis.consumers import Consumers
from holdfast.backends.redis.session import Session
from holdfast.model.errors import InvalidInput
from holdfast.model.job import LIVE, JobRecord, State

_ID = re.compile(r"[0-9]{1,20}-[0-9]{1,20}")


class Operators:
    """Guarded changes to single jobs, and views of them."""

    def __init__(self, session: Session, consumers: Consumers) -> None:
        self._session, self._consumers = session, consumers

    async def cancel(self, channel: str, source: str, event_id: str, consumer: str | None) -> int:
        """scheduled | ready → cancelled."""
        if consumer == "":
            return 0  # no consumer's name, while the script takes it for all of them
        await self._consumers.catch_up(channel)
        return int(await self._session.run("cancel", channel, source, event_id, consumer or ""))

    async def requeue(self, channel: str, consumer: str, job_id: str) -> bool:
        """Back to ready with a newer token."""
        if not is_id(job_id):
            raise InvalidInput(f"job id {job_id!r} is not of the form 1700000000000-0; 'jobs show' prints it")
        return bool(await self._session.run("requeue", f"{channel}/{consumer}", job_id))

    async def job(self, channel: str, consumer: str, job_id: str) -> JobRecord | None:
        """One job, whatever became of it."""
        if not is_id(job_id):
            return None
        rows = await self._session.run("records", "job", f"{channel}/{consumer}", job_id)
        return record_of(*rows[0]) if rows else None

    async def stuck(self, limit: int) -> list[JobRecord]:
        """Leased jobs past their deadline."""
        return [record_of(*row) for row in await self._session.run("records", "stuck", limit)]

    async def find_jobs(self, channel: str, source: str, event_id: str) -> list[JobRecord]:
        """An event's jobs, live and terminal."""
        await self._consumers.catch_up(channel)
        rows = await self._session.run("records", "event", channel, source, event_id)
        return sorted((record_of(*row) for row in rows), key=lambda job: job.consumer)


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
    )


def _errors(kept: bytes) -> list[dict[str, Any]]:
    """Every attempt's error, with its time as text."""
    errors: list[dict[str, Any]] = orjson.loads(b"[" + kept + b"]")
    return [error | {"at": from_micros(error["at"]).isoformat()} for error in errors]
