"""The pipeline: the archiver, the ingest and its WAL, failed events, and what can be done about them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal
from urllib.parse import quote

from fastapi import APIRouter, Form, Query, Request, Response
from fastapi.responses import RedirectResponse

from holdfast.deadletters.failed import FailedRecord, FailedRecords
from holdfast.model.errors import NotFound
from holdfast.server.context import Known, System
from holdfast.server.drivers import Driver, read_drivers
from holdfast.server.pages.figures import Figures, Name, StreamFigures
from holdfast.server.pages.house import PageRoute, page
from holdfast.server.pages.visit import Visit, visits
from holdfast.server.pages.watch import Watch
from holdfast.server.reconciled import Reconciled, read_reconciled

router = APIRouter(route_class=PageRoute, include_in_schema=False)

SHOWN, LAST = 50, 200
"""Failed events on one page, and how many pages there are at most."""


@dataclass(frozen=True, slots=True)
class PipelineView:
    """Everything that the page shows."""

    drivers: list[Driver]
    reconciled: list[Reconciled]
    streams: list[tuple[Name, StreamFigures, list[float]]]
    figures: Figures
    failed: Sequence[FailedRecord] | None
    """One page of them, pending ones first. None: there is no ingest here."""
    number: int
    """Of the page, from 1."""
    more: bool


@router.get("/pipeline")
async def pipeline(
    request: Request,
    system: Known,
    visit: Annotated[Visit, visits("read")],
    number: Annotated[int, Query(alias="page", ge=1, le=LAST)] = 1,
) -> Response:
    """Archiver and ingest, how far behind they are, whether the books agree, and what failed."""
    watch: Watch = request.app.state.watch
    figures = watch.history.latest or await watch.look()
    store, namespace = await system.letters.store(0), system.config.namespace
    drivers, reconciled = await read_drivers(store, namespace), await read_reconciled(store, namespace)
    streams = [
        (name, each, watch.history.series("lag", *name)) for name, each in sorted(figures.streams.items())
    ]
    found, records = None, _records(system)
    if records is not None:
        most = number * SHOWN + 1
        found = await asyncio.to_thread(lambda: records.find(limit=most, pending_first=True, payloads=False))
    shown = None if found is None else found[(number - 1) * SHOWN : number * SHOWN]
    more = found is not None and len(found) > number * SHOWN and number < LAST
    view = PipelineView(list(drivers.values()), reconciled, streams, figures, shown, number, more)
    return page(request, "pipeline.html", visit, view=view)


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
