"""Backlogs: what every consumer has before it, for whoever looks often."""

from __future__ import annotations

from datetime import datetime

from holdfast.backends.postgres.session import Session
from holdfast.contracts import Backlog, JobTimes
from holdfast.model.job import State


async def read_backlogs(session: Session, limit: int) -> list[Backlog]:
    """One statement for all consumers, each count up to the limit."""
    rows = await session.rows("backlogs", limit=limit)
    return [
        Backlog(channel, consumer, _live(ready, leased, scheduled), oldest)
        for channel, consumer, ready, leased, scheduled, oldest in rows
    ]


async def read_job_times(session: Session) -> list[JobTimes]:
    """One statement for all consumers."""
    return [
        JobTimes(channel, consumer, _span(due, last_due), _span(died, last_died))
        for channel, consumer, due, last_due, died, last_died in await session.rows("job_times")
    ]


def _span(oldest: datetime | None, newest: datetime) -> tuple[datetime, datetime] | None:
    return None if oldest is None else (oldest, newest)


def _live(ready: int, leased: int, scheduled: int) -> dict[State, int]:
    return {State.READY: ready, State.LEASED: leased, State.SCHEDULED: scheduled}
