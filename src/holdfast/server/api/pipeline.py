"""The pipeline: what its drivers report, the WAL's figures, an event's life, and the audit."""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query
from pydantic import Field

from holdfast.model.errors import NotFound
from holdfast.server.api.models import EntryOut, Model
from holdfast.server.auth.caller import Caller
from holdfast.server.auth.guard import needs
from holdfast.server.context import Known, System
from holdfast.server.drivers import read_drivers
from holdfast.server.parameters import Limit

router = APIRouter(tags=["pipeline"])

Reads = Annotated[Caller, Depends(needs("read"))]


class DriverOut(Model):
    """A Spark driver as it last reported."""

    name: str = Field(examples=["ingest"])
    age_seconds: float
    """How long ago that was."""
    trouble: str | None
    """What is wrong with it, if anything is."""
    report: dict[str, Any]


class PipelineOut(Model):
    """The archiver and the ingest, as far as they ever reported."""

    drivers: list[DriverOut]


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
    """What the archiver and the ingest last reported."""
    found = await read_drivers(await system.letters.store(0), system.config.namespace)
    return PipelineOut(
        drivers=[
            DriverOut(name=each.name, age_seconds=each.age, trouble=each.trouble, report=each.report)
            for each in found.values()
        ]
    )


@router.get("/wal")
async def show_wal(system: Known, caller: Reads) -> dict[str, Any]:
    """The figures of the ingest's write-ahead log, as the driver last reported them."""
    found = await read_drivers(await system.letters.store(0), system.config.namespace)
    if "ingest" not in found:
        raise NotFound("the ingest has never reported; configure ingest: channels: and start it")
    wal: dict[str, Any] = found["ingest"].report["wal"]
    return wal


@router.get("/trace")
async def trace_event(
    system: Known,
    caller: Annotated[Caller, Depends(needs("read", filtered=True))],
    id: Annotated[str, Query(min_length=1, max_length=512, description="The event's id.")],  # noqa: A002 - CloudEvents' own
    channel: Annotated[str | None, Query(max_length=128)] = None,
    source: Annotated[str | None, Query(max_length=512)] = None,
) -> list[LifeOut]:
    """An event's whole life: published, attempts, archive, WAL, warehouse, dead letter, requeues."""
    caller.require("read", channel)
    lives = await _trace(system, id, channel, source)
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
        if caller.sees(life.channel)
    ]


@router.get("/audit")
async def read_audit(
    system: Known, caller: Annotated[Caller, Depends(needs("admin"))], limit: Limit = 100
) -> list[EntryOut]:
    """Who did what, the latest first."""
    return [EntryOut.of(each) for each in await system.audit.latest(limit)]


async def _trace(system: System, event_id: str, channel: str | None, source: str | None) -> Any:
    if system.ledgers is None:
        raise NotFound("this server has no books to trace an event in; use 'holdfast trace'")
    return await asyncio.to_thread(system.ledgers.trace, event_id, channel, source)
