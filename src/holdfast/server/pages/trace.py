"""Trace: an event's life on a time line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from holdfast.model.errors import NotFound
from holdfast.server.api.pipeline import lives_of
from holdfast.server.context import Known
from holdfast.server.ledgers import Life, Step
from holdfast.server.pages.house import PageRoute, page
from holdfast.server.pages.visit import Visit, visits

router = APIRouter(route_class=PageRoute, include_in_schema=False)

BAD = ("dead", "failed", "attempt", "expired", "rejected", "conflict")
GOOD = ("done", "archived", "in the warehouse", "confirmed", "loaded", "resolved")


@router.get("/trace")
async def trace(
    request: Request,
    system: Known,
    visit: Annotated[Visit, visits("read")],
    id: Annotated[str, Query(max_length=512)] = "",  # noqa: A002 - the name in the address
    channel: Annotated[str, Query(max_length=128)] = "",
) -> Response:
    """Ask for an event, and see what became of it."""
    lives: Sequence[Life] = ()
    missing = None
    if id:
        try:
            lives = await lives_of(system, visit.caller, id, channel or None, None)
        except NotFound as error:
            missing = str(error)
    tones = [[tone(step) for step in life.steps] for life in lives]
    shown = list(zip(lives, tones, strict=True))
    return page(request, "trace.html", visit, id=id, channel=channel, lives=shown, missing=missing)


def tone(step: Step) -> str:
    """How a step looks."""
    words = step.what.lower()
    if any(each in words for each in GOOD):
        return "good"
    return "bad" if any(each in words for each in BAD) else "flow"
