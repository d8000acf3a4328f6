"""Models: the broker's answers, in its own names."""

from __future__ import annotations

from datetime import datetime

from pydantic import BaseModel, ConfigDict, Field

from holdfast.deadletters.items import Item


class _Model(BaseModel):
    model_config = ConfigDict(use_attribute_docstrings=True)


class ConsumerNames(_Model):
    """A consumer: ids that work in every path, and names for people."""

    channelId: str = Field(examples=["order-events"])
    channelName: str = Field(examples=["Order Events"])
    consumerId: str = Field(examples=["payment-service"])
    consumerName: str = Field(examples=["Payment Service"])


class DLQConsumer(ConsumerNames):
    """A consumer and how many of its jobs are dead: exact, at any number."""

    deadCount: int = Field(examples=[23469224], ge=0)


class DLQStatus(_Model):
    """Every worker consumer that the caller sees."""

    consumers: list[DLQConsumer]


class StatusCount(_Model):
    """How many jobs have a status: 1001 QUEUED, 1002 INFLIGHT, 1003 DELIVERED, 1004 DEAD."""

    status: int = Field(examples=[1001])
    name: str = Field(examples=["QUEUED"])
    count: int = Field(examples=[7], ge=0)
    exact: bool
    """False: at least so many."""
    oldest: datetime | None = None
    """QUEUED: when the first of those that are due was due. DEAD: when the first of them died."""
    newest: datetime | None = None
    """The same of the last one. Both are null where there is none, and for the other statuses."""


class ConsumerJobs(ConsumerNames):
    """A consumer and its jobs by status."""

    statuses: list[StatusCount]


class JobStatus(_Model):
    """Every worker consumer that the caller sees."""

    consumers: list[ConsumerJobs]


class DeadJob(_Model):
    """A dead job."""

    jobId: str = Field(examples=["42"])
    """Works in the path of a deletion."""
    messageId: str = Field(examples=["o-1"])
    """The event's id."""
    status: int = Field(default=1004, examples=[1004])
    statusChangedAt: datetime
    """When it died, in the store's time."""
    retryAttemptCount: int = Field(examples=[5], ge=0)
    reason: str = Field(examples=["max_attempts"])
    error: str = Field(examples=["card declined"])
    """The last error."""

    @classmethod
    def of(cls, item: Item) -> DeadJob:
        """From an item of the list of dead letters."""
        return cls(
            jobId=item.job,
            messageId=item.event_id,
            statusChangedAt=item.died_at,
            retryAttemptCount=item.attempts,
            reason=item.reason,
            error=item.error,
        )


class DeadJobs(DLQConsumer):
    """A consumer and a page of its dead jobs."""

    jobs: list[DeadJob]
    after: str | None
    """Where the next page begins; null on the last one."""


class Requeued(_Model):
    """What is in the queue again."""

    requeued: int = Field(examples=[17], ge=0)


class Deleted(_Model):
    """What was deleted."""

    deleted: int = Field(examples=[17], ge=0)


class Accepted(_Model):
    """What is being done: `GET /api/v1/operations/ID` tells how far it is."""

    operation: str
    """The operation's id."""
    expected: int | None
    """How many dead letters there were when it was asked for."""
