"""Rows: jobs as the simulated store keeps them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from holdfast.model.event import Event
from holdfast.model.job import LIVE, Job, Reason, State

CHANNEL = "orders"


@dataclass(slots=True, eq=False)
class Row:
    """One event for one consumer."""

    consumer: str
    event: Event
    position: str
    due_at: datetime
    expires_at: datetime | None
    priority: int
    state: State
    token: int = 0
    attempts: int = 0
    abandonments: int = 0
    lease_until: datetime | None = None
    worker: str | None = None
    reason: Reason | None = None

    @property
    def live(self) -> bool:
        """Whether it is not over."""
        return self.state in LIVE

    @property
    def waits(self) -> bool:
        """Whether it is live and with nobody."""
        return self.state in (State.READY, State.SCHEDULED)

    @property
    def name(self) -> str:
        """For the trace."""
        return f"{self.consumer}/{self.event.id}"

    def lease(self) -> Job:
        """As a worker gets it."""
        assert self.lease_until is not None  # noqa: S101 - it was leased just now
        return Job(
            self.position,
            CHANNEL,
            self.consumer,
            self.event,
            self.position,
            self.attempts,
            self.abandonments,
            self.token,
            self.lease_until,
        )
