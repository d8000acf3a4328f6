"""Models: the broker's answers, in its own names."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


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


class ConsumerJobs(ConsumerNames):
    """A consumer and its jobs by status."""

    statuses: list[StatusCount]


class JobStatus(_Model):
    """Every worker consumer that the caller sees."""

    consumers: list[ConsumerJobs]


class Deleted(_Model):
    """What was deleted."""

    deleted: int = Field(examples=[17], ge=0)


class Accepted(_Model):
    """What is being done: `GET /api/v1/operations/ID` tells how far it is."""

    operation: str
    """The operation's id."""
    expected: int | None
    """How many dead letters there were when it was asked for."""
