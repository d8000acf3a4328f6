"""One dead letter: its event, and every attempt on a time line."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Request, Response

from holdfast.deadletters.ids import parse_item
from holdfast.deadletters.items import Detail, Item
from holdfast.model.event import Event
from holdfast.server.api.filters import check_item
from holdfast.server.auth.caller import Caller
from holdfast.server.context import Known
from holdfast.server.pages.house import PageRoute, page
from holdfast.server.pages.payload import Payload, payload
from holdfast.server.pages.visit import Visit, visits
from holdfast.server.pages.wanted import Wanted, reason_word
from holdfast.server.pages.words import ago
from holdfast.server.parameters import ItemId

router = APIRouter(route_class=PageRoute, include_in_schema=False)


@dataclass(frozen=True, slots=True)
class Moment:
    """A point on the time line."""

    title: str
    at: datetime | None
    tone: str = ""
    words: str = ""
    since: str = ""
    """How long after the one before."""


@dataclass(frozen=True, slots=True)
class Letter:
    """Everything that the page shows."""

    item: Item
    reason: str
    event: Event
    data: Payload
    original: Payload | None
    moments: list[Moment]
    more: list[tuple[str, Any]]
    acts: tuple[str, ...]
    wanted: Wanted
    now: datetime


@router.get("/deadletters/{item}")
async def letter(
    request: Request,
    item: ItemId,
    system: Known,
    visit: Annotated[Visit, visits("read", filtered=True)],
    whole: bool = False,
) -> Response:
    """One of them."""
    await check_item(system, visit.caller, "read", item)
    detail = await system.letters.show(item)
    now = await (await system.letters.store(detail.item.partition)).now()
    return page(request, "letter.html", visit, view=_view(detail, visit.caller, now, whole), whole=whole)


def _view(detail: Detail, caller: Caller, now: datetime, whole: bool) -> Letter:
    item = detail.item
    stands = parse_item(item.id).channel or item.channel  # a message: in its dead-letter channel
    may = caller.may("operate", stands, item.consumer or None)
    return Letter(
        item=item,
        reason=reason_word(item.reason),
        event=detail.event,
        data=payload(detail.event.data, whole),
        original=None if detail.original is None else payload(detail.original, whole),
        moments=list(moments(detail)),
        more=[(name, value) for name, value in detail.more.items() if name not in ("created_at", "token")],
        acts=acts_on(item) if may else (),
        wanted=Wanted({}, (item.id,)),
        now=now,
    )


def acts_on(item: Item) -> tuple[str, ...]:
    """What can be done with an item of its kind."""
    match item.kind:
        case "job":
            return ("requeue", "patch", "delete")
        case "ingest":
            return ("requeue", "delete")
        case "stream":
            return ("requeue",)


def moments(detail: Detail) -> Iterator[Moment]:
    """From its publication to its death."""
    item, before = detail.item, None
    created: datetime | None = detail.more.get("created_at") or detail.event.time
    if created is not None:
        yield Moment(f"Published to {item.channel}", created)
        before = created
    for number, error in enumerate(detail.errors, 1):
        at = datetime.fromisoformat(error["at"]) if error.get("at") else None
        kind, words = str(error.get("kind", "")), str(error.get("error", ""))
        title = f"Attempt {error.get('attempt') or number} failed"
        yield Moment(title, at, "wait", f"{kind}: {words}" if kind else words, _after(before, at))
        before = at or before
    words = "" if detail.errors else item.error
    yield Moment(
        f"Died: {reason_word(item.reason)}", item.died_at, "bad", words, _after(before, item.died_at)
    )


def _after(before: datetime | None, at: datetime | None) -> str:
    if before is None or at is None or (at - before).total_seconds() < 1:
        return ""
    return ago(before, at)
