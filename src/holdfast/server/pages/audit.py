"""The audit log: who did what, newest first."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from pydantic import ValidationError

from holdfast.contracts import Backend
from holdfast.model.event import Event
from holdfast.server.pages.layout import PageReadsFiltered, PageRoute, page
from holdfast.server.system import Known
from holdfast.upkeep.announcements import Audited

router = APIRouter(route_class=PageRoute, include_in_schema=False)

SIZE = 25
_MOST = 100_000


@dataclass(frozen=True, slots=True)
class TailEntry:
    """One event, and when it was published."""

    at: datetime | None
    event: Event


@dataclass(frozen=True, slots=True)
class LogTail:
    """Some entries, and where the older ones end."""

    entries: list[TailEntry]
    older: str | None


async def read_tail(store: Backend, channel: str, until: str | None, size: int) -> LogTail:
    """The last `size` to twice as many events up to a position, or to the end of the log."""
    ends: list[str | None] = [None]
    while cuts := await store.log.cuts(channel, ends[-1], _MOST, size, until):
        ends += [cut.position for cut in cuts]
    entries: list[TailEntry] = []
    slices = list(pairwise(ends))[-2:]
    for after, last in slices:
        entries += await _entries(store, channel, after, last or "", 2 * size)
    return LogTail(entries[::-1], slices[0][0] if slices else None)


async def _entries(store: Backend, channel: str, after: str | None, last: str, most: int) -> list[TailEntry]:
    found = [each for each in await store.log.read(channel, after, most) if each.position <= last]
    places = [after, *(each.position for each in found)]
    lags = await asyncio.gather(*(store.log.behind(channel, place, 1) for place in places[:-1]))
    return [TailEntry(lag.oldest, each.event) for lag, each in zip(lags, found, strict=True)]


@dataclass(frozen=True, slots=True)
class AuditRow:
    """One line of the log."""

    at: datetime | None
    audited: Audited
    tone: str


@router.get("/audit")
async def audit(
    request: Request,
    system: Known,
    viewer: PageReadsFiltered,
    until: Annotated[str | None, Query(max_length=128, pattern=r"^[0-9A-Za-z._-]+$")] = None,
) -> Response:
    """For everybody who may read the channel of the audit."""
    channel = f"{system.config.namespace}.events.system.{Audited.topic}"
    viewer.caller.require("read", channel)
    store = await system.operations.first()
    found = await read_tail(store, channel, until, SIZE)
    rows = list(_rows(found.entries))
    return page(request, "audit.html", viewer, rows=rows, older=found.older, channel=channel)


def _rows(entries: Iterable[TailEntry]) -> Iterable[AuditRow]:
    """What is no audit entry is left out, whoever published it."""
    for each in entries:
        try:
            audited = Audited.model_validate_json(each.event.data)
        except ValidationError:
            continue
        yield AuditRow(each.at, audited, tone(audited.outcome))


def tone(outcome: str) -> str:
    """The colour of an outcome, by its first word."""
    first = outcome.partition(":")[0].split(" ")[0]
    return {"refused": "bad", "failed": "bad", "stopped": "bad", "cancelled": "wait", "done": "good"}.get(
        first, "calm"
    )
