"""Jobs: one event's job of a consumer, shown before it is cancelled."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Form, Query, Request, Response
from fastapi.responses import RedirectResponse

from holdfast.model.event import DEFAULT_SOURCE
from holdfast.model.job import LONGEST_REASON
from holdfast.model.states import LIVE, State
from holdfast.server.api.jobs import jobs_of
from holdfast.server.api.models import Channel, Consumer
from holdfast.server.pages.layout import PageOperates, PageRoute, page
from holdfast.server.system import Known

router = APIRouter(
    route_class=PageRoute, include_in_schema=False, prefix="/channels/{channel}/consumers/{consumer}"
)

EventId = Annotated[str, Query(min_length=1, max_length=512)]


@router.get("/cancel")
async def ask_to_cancel(
    request: Request,
    channel: Channel,
    consumer: Consumer,
    system: Known,
    viewer: PageOperates,
    id: EventId,  # noqa: A002 - the name in the address
    source: Annotated[str, Query(max_length=512)] = DEFAULT_SOURCE,
) -> Response:
    """What would be cancelled."""
    [job, *_] = await jobs_of(system, channel, consumer, id, source)
    live, leased = job.state in LIVE, job.state == State.LEASED
    return page(request, "cancel.html", viewer, job=job, live=live, leased=leased)


@router.post("/cancel")
async def cancel(
    channel: Channel,
    consumer: Consumer,
    system: Known,
    viewer: PageOperates,
    id: Annotated[str, Form(min_length=1, max_length=512)],  # noqa: A002 - the name in the address
    source: Annotated[str, Form(max_length=512)] = DEFAULT_SOURCE,
    reason: Annotated[str, Form(max_length=LONGEST_REASON)] = "",
    running: Annotated[bool, Form()] = False,
) -> Response:
    """Cancel it, and show its consumer. A job that has ended or begun meanwhile may be left as it is."""
    by, why = viewer.caller.actor, reason or None
    cancelled = await system.bus.cancel(
        channel, id, source=source, consumer=consumer, running=running, by=by, reason=why
    )
    notice = "cancelled" if cancelled else "not-cancelled"
    return RedirectResponse(f"/channels/{channel}/consumers/{consumer}?notice={notice}", 303)
