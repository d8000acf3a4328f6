"""Backlogs: what every consumer has before it, for whoever looks often."""

from __future__ import annotations

from holdfast.backends.postgres.session import Session
from holdfast.contracts import Backlog
from holdfast.model.job import State


async def read_backlogs(session: Session, limit: int) -> list[Backlog]:
    """One statement for all consumers, each count up to the limit."""
    rows = await session.rows("backlogs", limit=limit)
    return [
        Backlog(channel, consumer, _live(ready, leased, scheduled), oldest)
        for channel, consumer, ready, leased, scheduled, oldest in rows
    ]


def _live(ready: int, leased: int, scheduled: int) -> dict[State, int]:
    return {State.READY: ready, State.LEASED: leased, State.SCHEDULED: scheduled}
