"""The pipeline: the archiver, the ingest and its WAL, failed events, and what can be done about them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, get_args
from urllib.parse import quote

from fastapi import APIRouter, Form, Query, Request, Response
from fastapi.responses import RedirectResponse

from holdfast.deadletters.failed import FailedRecord, FailedRecords, Status
from holdfast.model.errors import NotFound
from holdfast.server.auth.caller import Caller
from holdfast.server.context import Known, System
from holdfast.server.drivers import Driver, read_drivers
from holdfast.server.pages.figures import Figures, Name, StreamFigures
from holdfast.server.pages.house import PageRoute, page
from holdfast.server.pages.visit import Visit, visits
from holdfast.server.pages.watch import Watch
from holdfast.server.reconciled import Reconciled, read_reconciled

router = APIRouter(route_class=PageRoute, include_in_schema=False)

SHOWN = 50
"""Failed events on one page."""
LIST = "failed events of the pipeline"
"""What its cursors are for."""


@dataclass(frozen=True, slots=True)
class PipelineView:
    """Everything that the page shows."""

    drivers: list[Driver]
    reconciled: list[Reconciled]
    streams: list[tuple[Name, StreamFigures, list[float]]]
    figures: Figures
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
    visit: Annotated[Visit, visits("read")],
    status: Status = "pending",
    after: Annotated[str | None, Query(max_length=4096)] = None,
) -> Response:
    """Archiver and ingest, how far behind they are, whether the books agree, and what failed."""
    watch: Watch = request.app.state.watch
    figures = watch.history.latest or await watch.look()
    store, namespace = await system.letters.store(0), system.config.namespace
    drivers, reconciled = await read_drivers(store, namespace), await read_reconciled(store, namespace)
    streams = [
        (name, each, watch.history.series("lag", *name)) for name, each in sorted(figures.streams.items())
    ]
    shown, goes_on = await _failed(system, visit.caller, status, after)
    view = PipelineView(
        list(drivers.values()), reconciled, streams, figures, shown, status, after is not None, goes_on
    )
    return page(request, "pipeline.html", visit, view=view, statuses=get_args(Status))


async def _failed(
    system: System, caller: Caller, status: Status, after: str | None
) -> tuple[Sequence[FailedRecord] | None, str | None]:
    """A page of the failed events in a status, and the cursor of the next one; None without an ingest."""
    records, size = _records(system), system.config.server.limits.answer
    if records is None:
        return None, None
    place = await system.cursors.open(caller, f"{LIST}: {status}", after)
    with system.searches.take(caller.actor):
        found, goes_on = await asyncio.to_thread(records.page, caller.sees, status, place, SHOWN, size)
    return found, await system.cursors.seal(caller, f"{LIST}: {status}", goes_on)


@router.get("/pipeline/failed/{failed}")
async def failed_event(
    request: Request, failed: str, system: Known, visit: Annotated[Visit, visits("read")]
) -> Response:
    """One failed event, whole."""
    record = await asyncio.to_thread(_known(system).show, failed)
    return page(request, "failed.html", visit, event=record)


@router.post("/pipeline/failed/{failed}/{act}")
async def act(
    failed: str,
    act: Literal["retry", "resolve", "abandon"],
    system: Known,
    visit: Annotated[Visit, visits("operate")],
    notes: Annotated[str, Form(max_length=10_000)] = "",
) -> Response:
    """Do something about it."""
    records, actor = _known(system), visit.caller.actor
    if act == "retry":
        done = await asyncio.to_thread(records.retry, failed, actor)
    else:
        verb = records.resolve if act == "resolve" else records.abandon
        done = await asyncio.to_thread(verb, failed, actor, notes)
    await system.audit.did(actor, f"{act} failed event", failed, done.status)
    return RedirectResponse(f"/pipeline/failed/{quote(failed)}?notice={done.status}", 303)


def _records(system: System) -> FailedRecords | None:
    return system.ledgers.records if system.ledgers is not None else None


def _known(system: System) -> FailedRecords:
    records = _records(system)
    if records is None:
        raise NotFound("there is no ingest here, so no failed events; configure ingest: channels:")
    return records
