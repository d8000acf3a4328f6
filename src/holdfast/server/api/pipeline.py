"""The pipeline: its drivers' reports, the WAL, an event's trace, the audit, and SQL on the warehouse."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any

from fastapi import Depends, Query, Response
from pydantic import Field

from holdfast.model.errors import HoldfastError, NotFound
from holdfast.server.api.models import EntryOut, Limit, Model, Name, Whole
from holdfast.server.auth.caller import Caller
from holdfast.server.auth.guard import Reads, ReadsFiltered, Router, needs
from holdfast.server.openapi import may_fail
from holdfast.server.pipeline_port import TraceResult, read_drivers, read_reconciled
from holdfast.server.system import Known, System

router = Router(tags=["pipeline"])

LONGEST_QUERY, ROWS = 100_000, 1_000
"""Characters of a query, and rows of its result unless it says otherwise."""


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
    store, namespace = await system.deadletters.store(0), system.config.namespace
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


@router.get("/wal", responses=may_fail(404))
async def show_wal(system: Known, caller: Reads) -> dict[str, Any]:
    """The figures of the ingest's write-ahead log, as the driver last reported them."""
    found = await read_drivers(await system.deadletters.store(0), system.config.namespace)
    if "ingest" not in found:
        raise NotFound("the ingest has never reported; configure ingest: channels: and start it")
    wal: dict[str, Any] = found["ingest"].report["wal"]
    return wal


@router.get("/trace", responses=may_fail(404))
async def trace_event(
    system: Known,
    caller: ReadsFiltered,
    id: Annotated[str, Query(min_length=1, max_length=512, description="The event's id.")],  # noqa: A002 - CloudEvents' own
    channel: Annotated[Name | None, Query()] = None,
    source: Annotated[str | None, Query(max_length=512)] = None,
) -> list[LifeOut]:
    """An event's whole life: published, attempts, archive, WAL, warehouse, dead letter, requeues."""
    caller.require("read", channel)
    traces = await find_traces(system, caller, id, channel, source)
    return [
        LifeOut(
            channel=trace.channel,
            source=trace.source,
            id=trace.id,
            steps=[
                StepOut(at=step.at, what=step.what, where=step.where, detail=step.detail)
                for step in trace.steps
            ],
        )
        for trace in traces
    ]


@router.get("/audit")
async def read_audit(
    system: Known, caller: Annotated[Caller, Depends(needs("admin"))], limit: Limit = 100
) -> list[EntryOut]:
    """Who did what, the latest first."""
    return [EntryOut.of(each) for each in await system.audit.latest(limit)]


async def find_traces(
    system: System, caller: Caller, event_id: str, channel: str | None, source: str | None
) -> Sequence[TraceResult]:
    """Every event of that id that the caller may read with its whole trace; `NotFound` where there is
    none, or nobody can tell."""
    if system.pipeline is None:
        raise NotFound("this server cannot read the books of the pipeline: pip install 'holdfast[spark]'")
    try:
        with system.searches.take(caller.actor):
            found = await asyncio.to_thread(system.pipeline.trace, event_id, channel, source)
    except NotFound:
        found = []
    traces = [trace for trace in found if caller.sees(trace.channel)]
    if not traces:
        raise NotFound(f"no trace of the event {event_id!r} in {channel or 'any channel'}")
    return traces


class QueryIn(Model):
    """A query."""

    sql: str = Field(
        min_length=1, max_length=LONGEST_QUERY, examples=["SELECT count(*) AS events FROM all_events"]
    )
    """One SELECT in DuckDB's dialect."""
    limit: Annotated[int, Field(ge=1, le=10_000), Whole] = ROWS
    """The most rows of the result."""


class ResultColumn(Model):
    """A column of a result."""

    name: str = Field(examples=["events"])
    type: str = Field(examples=["BIGINT"])
    """DuckDB's name of it."""


class QueryOut(Model):
    """The result of a query."""

    columns: list[ResultColumn]
    rows: list[list[Any]]
    """Each with a value for every column. Times and intervals are text, bytes are hexadecimal."""
    truncated: bool
    """Whether there are more rows than these: after `limit`, or after the bytes of one answer."""
    seconds: float


@router.post("/query", response_model=QueryOut, responses=may_fail(404))
async def query_warehouse(body: QueryIn, system: Known, caller: Reads) -> Response:
    """Ask the warehouse. It is only read, within limits on time, memory and size; the query is audited."""
    result = await run_query(system, caller, body.sql, body.limit)
    return Response(result, media_type="application/json")


async def run_query(system: System, caller: Caller, sql: str, rows: int) -> bytes:
    """The result as JSON; what was asked is in the audit, however it ended. `NotFound` where this server has
    no warehouse; else as `PipelinePort.query`."""
    if system.pipeline is None:
        raise NotFound("this server cannot read the warehouse: pip install 'holdfast[spark]'")
    size, audit = system.config.server.limits.answer, caller.may("admin")
    outcome = "unknown"
    with system.queries.take(caller.actor):
        try:
            result = await system.pipeline.query(sql, rows=rows, size=size, audit=audit)
            outcome = "done"
        except HoldfastError as error:
            outcome = f"failed: {error}"
            raise
        finally:
            await system.audit.did(caller.actor, "query", " ".join(sql.split()), outcome)
    return result
