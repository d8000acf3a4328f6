"""What operators do to jobs: cancel, requeue, look."""

from __future__ import annotations

from typing import Any

from holdfast.backends.postgres.session import Session
from holdfast.model.errors import InvalidInput
from holdfast.model.job import JobRecord, State
from holdfast.model.position import format_position


class Operators:
    """Guarded changes to single jobs, and views of them."""

    def __init__(self, session: Session) -> None:
        self._session = session

    async def cancel(self, channel: str, source: str, event_id: str, consumer: str | None) -> int:
        """scheduled | ready → cancelled."""
        row = await self._session.row(
            "cancel", channel=channel, source=source, id=event_id, consumer=consumer
        )
        return int(row[0]) if row else 0

    async def requeue(self, channel: str, consumer: str, job_id: str) -> bool:
        """Back to ready with a newer token."""
        seq = number(job_id)
        if seq is None:
            raise InvalidInput(f"job id {job_id!r} is not a number; 'holdfast jobs show' prints it")
        row = await self._session.row("requeue", channel=channel, consumer=consumer, seq=seq)
        return bool(row and row[0])

    async def stuck(self, limit: int) -> list[JobRecord]:
        """Leased jobs past their deadline."""
        return [record(row) for row in await self._session.rows("stuck", limit=limit)]

    async def find_jobs(self, channel: str, source: str, event_id: str) -> list[JobRecord]:
        """An event's jobs, live and terminal."""
        rows = await self._session.rows("find_jobs", channel=channel, source=source, id=event_id)
        return [record(row) for row in rows]

    async def job(self, channel: str, consumer: str, job_id: str) -> JobRecord | None:
        """One job, live or terminal."""
        seq = number(job_id)
        if seq is None:
            return None
        row = await self._session.row("job", channel=channel, consumer=consumer, seq=seq)
        return record(row) if row else None


def number(job_id: str) -> int | None:
    """The number that a job's id is; None where it is none that this store gave."""
    return int(job_id) if job_id.isascii() and job_id.isdigit() and len(job_id) <= 18 else None


def record(row: tuple[Any, ...]) -> JobRecord:
    """A job as an operator sees it, from a row that begins with its number, its names and its state."""
    seq, channel, consumer, state, event_id, source, epoch, tx, *rest = row
    position = format_position(epoch, tx, seq)
    return JobRecord(str(seq), channel, consumer, State(state), event_id or "", source or "", position, *rest)
