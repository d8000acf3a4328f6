"""The audit log: who did what, newest first."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from pydantic import ValidationError

from holdfast.server.context import Known
from holdfast.server.pages.house import PageRoute, page
from holdfast.server.pages.journal import Entry, tail
from holdfast.server.pages.visit import Visit, visits
from holdfast.upkeep.announcements import Audited

router = APIRouter(route_class=PageRoute, include_in_schema=False)

SIZE = 25


@dataclass(frozen=True, slots=True)
class Deed:
    """One line of the log."""

    at: datetime | None
    told: Audited
    tone: str


@router.get("/audit")
async def audit(
    request: Request,
    system: Known,
    visit: Annotated[Visit, visits("read", filtered=True)],
    until: Annotated[str | None, Query(max_length=128, pattern=r"^[0-9A-Za-z._-]+$")] = None,
) -> Response:
    """For everybody who may read the channel that it stands on."""
    channel = f"{system.config.namespace}.events.system.{Audited.topic}"
    visit.caller.require("read", channel)
    store = await system.operations.first()
    found = await tail(store, channel, until, SIZE)
    deeds = list(_deeds(found.entries))
    return page(request, "audit.html", visit, deeds=deeds, older=found.older, channel=channel)


def _deeds(entries: Iterable[Entry]) -> Iterable[Deed]:
    """What is no audit does not belong here, whoever published it."""
    for each in entries:
        try:
            told = Audited.model_validate_json(each.event.data)
        except ValidationError:
            continue
        yield Deed(each.at, told, tone(told.outcome))


def tone(outcome: str) -> str:
    """The colour of an outcome, by its first word."""
    first = outcome.partition(":")[0].split(" ")[0]
    return {"refused": "bad", "failed": "bad", "stopped": "bad", "cancelled": "wait", "done": "good"}.get(
        first, "calm"
    )
