"""The front page: the overview, alive."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Request, Response

from holdfast.server.context import Known, System
from holdfast.server.pages.house import PageRoute, page, part
from holdfast.server.pages.live import live
from holdfast.server.pages.overview import Overview, overview
from holdfast.server.pages.visit import Visit, visits
from holdfast.server.pages.watch import Watch

router = APIRouter(route_class=PageRoute, include_in_schema=False)
ARCHIVER, INGEST = "archiver", "ingest"


@router.get("/")
async def front(request: Request, system: Known, visit: Annotated[Visit, visits("read")]) -> Response:
    """The whole system at a glance."""
    watch: Watch = request.app.state.watch
    if watch.history.latest is None:
        await watch.look()
    return page(request, "overview.html", visit, room=_room(system, watch))


@router.get("/live/overview")
async def front_live(request: Request, system: Known, visit: Annotated[Visit, visits("read")]) -> Response:
    """The same, with every look."""
    watch: Watch = request.app.state.watch
    return live(system, visit.caller, watch, lambda: part("overview_live.html", room=_room(system, watch)))


def _room(system: System, watch: Watch) -> Overview:
    return overview(watch.history, system.supervisor.kept, {ARCHIVER}, {INGEST})
