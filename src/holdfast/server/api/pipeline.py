"""The pipeline: what its drivers report, the WAL's figures, an event's life, and the audit."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any

from fastapi import Depends, Query
from pydantic import Field

from holdfast.model.errors import NotFound
from holdfast.server.admission import Router
from holdfast.server.api.models import EntryOut, Model
from holdfast.server.auth.caller import Caller
from holdfast.server.auth.guard import needs
from holdfast.server.context import Known, System
from holdfast.server.drivers import read_drivers
from holdfast.server.ledgers import Life
from holdfast.server.openapi import may
from holdfast.server.parameters import Limit, Name
from holdfast.server.reconciled import read_reconciled

router = Router(tags=["pipeline"])

Reads = Annotated[Caller, Depends(needs("read"))]


class DriverOut(Model):
    """A Spark driver as it last reported."""

    name: str = Field(examples=["ingest"])
    age_seconds: float
    """How long ago that was."""
    trouble: str | None
    """What is wrong with it, if anything is."""
    report: dict[str, Any]


class ReconciledOut(Model):
    """The last reconciliation of a channel."""

    channel: str = Field(examples=["orders"])
    at: datetime
    verdict: str = Field(examples=["equal"])
    """`equal`, `on its way` where nothing is wrong but late, or `not equal`."""
    report: dict[str, Any]
    """As `holdfast reconcile --json` gives it, with the first 20 differences."""


class PipelineOut(Model):
    """The archiver and the ingest, as far as they ever reported, and what was reconciled."""

    drivers: list[DriverOut]
    reconciled: list[ReconciledOut]
    """The latest first."""


class StepOut(Model):
    """One thing that happened to an event."""

    at: datetime | None
    what: str
    where: str
    detail: str


class LifeOut(Model):
    """What is known of one event, in order."""

    channel: str
    source: str
    id: str
    steps: list[StepOut]


@router.get("/pipeline")
async def show_pipeline(system: Known, caller: Reads) -> PipelineOut:
    """What the archiver and the ingest last reported, and the last reconciliation of each channel."""
    store, namespace = await system.letters.store(0), system.config.namespace
    found = await read_drivers(store, namespace)
    return PipelineOut(
        drivers=[
            DriverOut(name=each.name, age_seconds=each.age, trouble=each.trouble, report=each.report)
            for each in found.values()
        ],
        reconciled=[
            ReconciledOut(
                channel=each.report["channel"], at=each.at, verdict=each.verdict, report=each.report
            )
            for each in await read_reconciled(store, namespace)
        ],
    )


@router.get("/wal", responses=may(404))
async def show_wal(system: Known, caller: Reads) -> dict[str, Any]:
    """The figures of the ingest's write-ahead log, as the driver last reported them."""
    found = await read_drivers(await system.letters.store(0), system.config.namespace)
    if "ingest" not in found:
        raise NotFound("the ingest has never reported; configure ingest: channels: and start it")
    wal: dict[str, Any] = found["ingest"].report["wal"]
    return wal


@router.get("/trace", responses=may(404))
async def trace_event(
    system: Known,
    caller: Annotated[Caller, Depends(needs("read", filtered=True))],
    id: Annotated[str, Query(min_length=1, max_length=512, description="The event's id.")],  # noqa: A002 - CloudEvents' own
    channel: Annotated[Name | None, Query()] = None,
    source: Annotated[str | None, Query(max_length=512)] = None,
) -> list[LifeOut]:
    """An event's whole life: published, attempts, archive, WAL, warehouse, dead letter, requeues."""
    caller.require("read", channel)
    lives = await lives_of(system, caller, id, channel, source)
    return [
        LifeOut(
            channel=life.channel,
            source=life.source,
            id=life.id,
            steps=[
                StepOut(at=step.at, what=step.what, where=step.where, detail=step.detail)
                for step in life.steps
            ],
        )
        for life in lives
    ]


@router.get("/audit")
async def read_audit(
    system: Known, caller: Annotated[Caller, Depends(needs("admin"))], limit: Limit = 100
) -> list[EntryOut]:
    """Who did what, the latest first."""
    return [EntryOut.of(each) for each in await system.audit.latest(limit)]


async def lives_of(
    system: System, caller: Caller, event_id: str, channel: str | None, source: str | None
) -> Sequence[Life]:
    """Every event of that id that the caller may read with its whole life; `NotFound` where there is
    none, or nobody can tell."""
    if system.ledgers is None:
        raise NotFound("this server cannot read the books of the pipeline: pip install 'holdfast[spark]'")
    try:
        with system.searches.take(caller.actor):
            found = await asyncio.to_thread(system.ledgers.trace, event_id, channel, source)
    except NotFound:
        found = []
    lives = [life for life in found if caller.sees(life.channel)]
    if not lives:
        raise NotFound(f"no trace of the event {event_id!r} in {channel or 'any channel'}")
    return lives
