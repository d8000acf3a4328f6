"""The pipeline: archiver, ingest, failed events; an event's trace; and SQL on the warehouse."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple, get_args
from urllib.parse import quote

import orjson
from fastapi import APIRouter, Form, Query, Request, Response
from fastapi.responses import RedirectResponse

from holdfast.deadletters.sources import FailedRecord, Status
from holdfast.model.errors import InvalidInput, NotFound, Unavailable
from holdfast.server.api.failed_events import NOTES, FailedId, failed_records
from holdfast.server.api.pipeline import LONGEST_QUERY, find_traces, run_query
from holdfast.server.auth.caller import Caller
from holdfast.server.errors import Full
from holdfast.server.pages.layout import PageOperates, PageReads, PageRoute, Viewer, page
from holdfast.server.pages.live import snapshots_of
from holdfast.server.pages.snapshot import ConsumerKey, Snapshot, StreamSnapshot
from holdfast.server.pipeline_port import (
    DriverReport,
    Reconciled,
    TraceResult,
    TraceStep,
    read_drivers,
    read_reconciled,
)
from holdfast.server.problems import problem
from holdfast.server.system import Known, System

router = APIRouter(route_class=PageRoute, include_in_schema=False)

SHOWN = 50
"""Failed events on one page."""
LIST = "failed events of the pipeline"
"""What its cursors are for."""
BAD = ("dead", "failed", "attempt", "expired", "rejected", "conflict")
GOOD = ("done", "archived", "in the warehouse", "confirmed", "loaded", "resolved")
ROWS, CUT = 500, 500
"""Rows on the page, and characters of a value."""


@dataclass(frozen=True, slots=True)
class PipelineView:
    """Everything that the page shows."""

    drivers: list[DriverReport]
    reconciled: list[Reconciled]
    streams: list[tuple[ConsumerKey, StreamSnapshot, list[float]]]
    snapshot: Snapshot
    failed: Sequence[FailedRecord] | None
    """Some of those in this status. None: there is no ingest here."""
    status: Status
    later: bool
    """Whether there was a page before this one."""
    after: str | None
    """Where the next page begins. One that is short, or empty, can have more behind it."""


@router.get("/pipeline")
async def pipeline(
    request: Request,
    system: Known,
    viewer: PageReads,
    status: Status = "pending",
    after: Annotated[str | None, Query(max_length=4096)] = None,
) -> Response:
    """Archiver and ingest, how far behind they are, the last reconciliations, and what failed."""
    snapshots = await snapshots_of(request)
    snapshot = snapshots.history.latest or Snapshot()
    store, namespace = await system.deadletters.store(0), system.config.namespace
    drivers, reconciled = await read_drivers(store, namespace), await read_reconciled(store, namespace)
    streams = [
        (name, each, snapshots.history.series("lag", *name))
        for name, each in sorted(snapshot.streams.items())
    ]
    shown, next_page = await _failed(system, viewer.caller, status, after)
    view = PipelineView(
        list(drivers.values()), reconciled, streams, snapshot, shown, status, after is not None, next_page
    )
    return page(request, "pipeline.html", viewer, view=view, statuses=get_args(Status))


async def _failed(
    system: System, caller: Caller, status: Status, after: str | None
) -> tuple[Sequence[FailedRecord] | None, str | None]:
    """A page of the failed events in a status, and the cursor of the next one; None without an ingest."""
    records, size = system.failed_records, system.config.server.limits.answer
    if records is None:
        return None, None
    place = await system.cursors.open(caller, f"{LIST}: {status}", after)
    with system.searches.take(caller.actor):
        found, next_page = await asyncio.to_thread(records.page, caller.sees, status, place, SHOWN, size)
    return found, await system.cursors.seal(caller, f"{LIST}: {status}", next_page)


@router.get("/pipeline/failed/{failed}")
async def failed_event(request: Request, failed: FailedId, system: Known, viewer: PageReads) -> Response:
    """One failed event, whole."""
    record = await asyncio.to_thread(failed_records(system).show, failed)
    return page(request, "failed.html", viewer, event=record)


@router.post("/pipeline/failed/{failed}/retry")
async def retry_failed_event(failed: FailedId, system: Known, viewer: PageOperates) -> Response:
    """Retry it."""
    done = await asyncio.to_thread(failed_records(system).retry, failed, viewer.caller.actor)
    return await _done(system, viewer, "retry", done)


@router.post("/pipeline/failed/{failed}/{act}")
async def settle_failed_event(
    failed: FailedId,
    act: Literal["resolve", "abandon"],
    system: Known,
    viewer: PageOperates,
    notes: Annotated[str, Form(min_length=1, max_length=NOTES)],
) -> Response:
    """Resolve or abandon it."""
    records = failed_records(system)
    verb = records.resolve if act == "resolve" else records.abandon
    return await _done(system, viewer, act, await asyncio.to_thread(verb, failed, viewer.caller.actor, notes))


async def _done(system: System, viewer: Viewer, act: str, failed: FailedRecord) -> Response:
    """Note who did what to it, and show it as it is now."""
    await system.audit.did(viewer.caller.actor, f"{act} failed event", failed.id, failed.status)
    return RedirectResponse(f"/pipeline/failed/{quote(failed.id)}?notice={failed.status}", 303)


@router.get("/trace")
async def trace(
    request: Request,
    system: Known,
    viewer: PageReads,
    id: Annotated[str, Query(max_length=512)] = "",  # noqa: A002 - the name in the address
    channel: Annotated[str, Query(max_length=128)] = "",
) -> Response:
    """Ask for an event, and see what became of it."""
    traces: Sequence[TraceResult] = ()
    missing = None
    if id:
        try:
            traces = await find_traces(system, viewer.caller, id, channel or None, None)
        except NotFound as error:
            missing = str(error)
    tones = [[tone(step) for step in each.steps] for each in traces]
    shown = list(zip(traces, tones, strict=True))
    return page(request, "trace.html", viewer, id=id, channel=channel, traces=shown, missing=missing)


def tone(step: TraceStep) -> str:
    """The colour of a step."""
    words = step.what.lower()
    if any(each in words for each in GOOD):
        return "good"
    return "bad" if any(each in words for each in BAD) else "flow"


class Example(NamedTuple):
    """A query to begin with."""

    name: str
    title: str
    sql: str


EXAMPLES = (
    Example(
        "minutes",
        "Events per minute",
        """\
SELECT date_trunc('minute', time) AS minute, channel, count(*) AS events
FROM all_events
WHERE time > now() - INTERVAL 1 HOUR
GROUP BY ALL
ORDER BY minute DESC, events DESC""",
    ),
    Example(
        "slowest",
        "Slowest into the warehouse",
        """\
SELECT channel, type, count(*) AS events,
       round(quantile_cont(epoch(ingested_at - time), 0.5), 1) AS median_seconds,
       round(quantile_cont(epoch(ingested_at - time), 0.99), 1) AS p99_seconds
FROM all_events
WHERE ingested_at > now() - INTERVAL 1 DAY
GROUP BY ALL
ORDER BY p99_seconds DESC""",
    ),
    Example(
        "failures",
        "Failures by day",
        """\
SELECT failed_at::DATE AS day, channel, failure_reason, status, count(*) AS events
FROM failed_events
GROUP BY ALL
ORDER BY day DESC, events DESC""",
    ),
    Example(
        "types",
        "Events by day and type",
        """\
SELECT time::DATE AS day, channel, type, count(*) AS events, count(DISTINCT key) AS keys
FROM all_events
GROUP BY ALL
ORDER BY day DESC, events DESC""",
    ),
    Example(
        "schemas",
        "Schema changes",
        """\
SELECT since, channel, version, cause, len(left_out) AS left_out
FROM holdfast_schemas
ORDER BY since DESC""",
    ),
    Example(
        "columns",
        "Tables and columns",
        """\
SELECT table_name, column_name, data_type
FROM information_schema.columns
ORDER BY table_name, ordinal_position""",
    ),
)


@router.get("/query")
async def query(
    request: Request, viewer: PageReads, example: Annotated[str, Query(max_length=32)] = ""
) -> Response:
    """A place for a query, and examples."""
    chosen = next((each for each in EXAMPLES if each.name == example), EXAMPLES[0])
    return _query_page(request, viewer, chosen.sql, chosen=example)


@router.post("/query")
async def run(
    request: Request,
    system: Known,
    viewer: PageReads,
    sql: Annotated[str, Form(min_length=1, max_length=LONGEST_QUERY)],
) -> Response:
    """Run it, and show its result or what is wrong with it."""
    sql = sql.replace("\r\n", "\n")  # a browser's ends of lines
    try:
        result = orjson.loads(await run_query(system, viewer.caller, sql, ROWS))
    except (InvalidInput, NotFound, Unavailable, Full) as error:
        status = problem(error, request.scope).status_code
        return _query_page(request, viewer, sql, status=status, error=str(error))
    rows = [[_shown(value) for value in row] for row in result["rows"]]
    return _query_page(request, viewer, sql, result=result | {"rows": rows})


def _query_page(request: Request, viewer: Viewer, sql: str, *, status: int = 200, **shown: Any) -> Response:
    context = {"examples": EXAMPLES, "chosen": "", "result": None, "error": None, **shown}
    return page(request, "query.html", viewer, status=status, sql=sql, **context)


def _shown(value: object) -> tuple[str, str]:
    """A value's text and its look."""
    match value:
        case None:
            return "null", "quiet"
        case bool():
            return str(value).lower(), ""
        case int() | float():
            return str(value), "number"
        case str():
            text = value
        case _:
            text = orjson.dumps(value).decode()
    return (text if len(text) <= CUT else f"{text[:CUT]}…"), ""
