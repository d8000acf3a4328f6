"""Dead letters: by what went wrong first, then one by one; and one with its event and every attempt."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from fastapi import APIRouter, Request, Response

from holdfast.deadletters.items import ClusterView, ConsumerDead, Count, Detail, Item, parse_item
from holdfast.model.event import Event
from holdfast.model.scopes import Right
from holdfast.server.api.deadletters import LIST, check_item
from holdfast.server.api.models import After, ItemId
from holdfast.server.auth.caller import Caller
from holdfast.server.pages.formatting import Payload, ago, payload
from holdfast.server.pages.forms import KINDS, REASONS, FilterForm, reason_text
from holdfast.server.pages.layout import PageReadsFiltered, PageRoute, page
from holdfast.server.system import Known, System

router = APIRouter(route_class=PageRoute, include_in_schema=False)

CLUSTERS, ITEMS = 12, 25
MOST_CLUSTERS = 1_000
COUNTED = 10_000


@dataclass(frozen=True, slots=True)
class ClusterRow:
    """One cluster: how many, of all those that are shown together."""

    cluster: ClusterView
    share: float
    query: str
    operable: bool


@dataclass(frozen=True, slots=True)
class DeadLettersView:
    """Everything that the page shows."""

    form: FilterForm
    dead: int
    reasons: dict[str, int]
    consumers: list[ConsumerDead]
    clusters: list[ClusterRow]
    more_clusters: int
    items: list[Item]
    count: Count
    after: str | None
    operable: bool
    now: datetime
    reason_names: dict[str, str]
    kind_names: dict[str, str]


@router.get("/deadletters")
async def dead_letters(
    request: Request, system: Known, viewer: PageReadsFiltered, after: After = None
) -> Response:
    """What died: counts, clusters, and the list that a filter means."""
    form = FilterForm.of(request.query_params)
    view = await _list_view(system, viewer.caller, form, after)
    return page(request, "deadletters.html", viewer, view=view, first=after is None)


async def _list_view(system: System, caller: Caller, form: FilterForm, after: str | None) -> DeadLettersView:
    right = caller.right("read")
    place = await system.cursors.open(caller, LIST, after)
    found = await system.deadletters.find(form.filter(), place, ITEMS, right)
    consumers = await system.deadletters.status(right)
    clusters = await _clusters(system, right, form)
    reasons: Counter[str] = Counter()
    for each in consumers:
        reasons.update(each.reasons)
    rows = cluster_rows(clusters, caller)
    return DeadLettersView(
        form=form,
        dead=reasons.total(),
        reasons=dict(reasons.most_common()),
        consumers=[each for each in consumers if each.dead],
        clusters=rows[:CLUSTERS],
        more_clusters=max(len(rows) - CLUSTERS, 0),
        items=found.items,
        count=await system.deadletters.count(form.filter(), COUNTED, right),
        after=await system.cursors.seal(caller, LIST, found.after),
        operable=form.allowed(caller, "operate"),
        now=await (await system.operations.first()).now(),
        reason_names={str(reason): words for reason, words in REASONS.items()},
        kind_names=KINDS,
    )


async def _clusters(system: System, right: Right, form: FilterForm) -> list[ClusterView]:
    """The clusters of the channel and the consumer; none where the filter names one already."""
    if "fingerprint" in form.given or form.given.get("letters", "job") != "job":
        return []
    where = form.filter().where
    return await system.deadletters.clusters(where.channel, where.consumer, MOST_CLUSTERS, right)


def cluster_rows(clusters: list[ClusterView], caller: Caller) -> list[ClusterRow]:
    """The clusters with their share, the largest first."""
    largest = max((each.count for each in clusters), default=1)
    return [
        ClusterRow(
            each,
            100 * each.count / largest,
            FilterForm(
                {"channel": each.channel, "consumer": each.consumer, "fingerprint": each.fingerprint}
            ).query(),
            caller.may("operate", each.channel, each.consumer),
        )
        for each in clusters
    ]


@dataclass(frozen=True, slots=True)
class TimelineEntry:
    """A point on the time line."""

    title: str
    at: datetime | None
    tone: str = ""
    words: str = ""
    since: str = ""
    """How long after the one before."""


@dataclass(frozen=True, slots=True)
class DeadLetterView:
    """Everything that the page shows."""

    item: Item
    reason: str
    event: Event
    data: Payload
    original: Payload | None
    timeline: list[TimelineEntry]
    more: list[tuple[str, Any]]
    acts: tuple[str, ...]
    form: FilterForm
    now: datetime


@router.get("/deadletters/{item}")
async def dead_letter(
    request: Request, item: ItemId, system: Known, viewer: PageReadsFiltered, whole: bool = False
) -> Response:
    """One of them."""
    await check_item(system, viewer.caller, "read", item)
    detail = await system.deadletters.show(item)
    now = await (await system.deadletters.store(detail.item.partition)).now()
    return page(
        request, "deadletter.html", viewer, view=_detail_view(detail, viewer.caller, now, whole), whole=whole
    )


def _detail_view(detail: Detail, caller: Caller, now: datetime, whole: bool) -> DeadLetterView:
    item = detail.item
    channel = parse_item(item.id).channel or item.channel  # a message: in its dead-letter channel
    may = caller.may("operate", channel, item.consumer or None)
    return DeadLetterView(
        item=item,
        reason=reason_text(item.reason),
        event=detail.event,
        data=payload(detail.event.data, whole),
        original=None if detail.original is None else payload(detail.original, whole),
        timeline=list(timeline(detail)),
        more=[(name, value) for name, value in detail.more.items() if name not in ("created_at", "token")],
        acts=actions_on(item) if may else (),
        form=FilterForm({}, (item.id,)),
        now=now,
    )


def actions_on(item: Item) -> tuple[str, ...]:
    """The actions for an item of this kind."""
    match item.kind:
        case "job":
            return ("requeue", "patch", "delete")
        case "ingest":
            return ("requeue", "delete")
        case "stream":
            return ("requeue",)


def timeline(detail: Detail) -> Iterator[TimelineEntry]:
    """From its publication to its death."""
    item, before = detail.item, None
    created: datetime | None = detail.more.get("created_at") or detail.event.time
    if created is not None:
        yield TimelineEntry(f"Published to {item.channel}", created)
        before = created
    for number, error in enumerate(detail.errors, 1):
        at = datetime.fromisoformat(error["at"]) if error.get("at") else None
        kind, words = str(error.get("kind", "")), str(error.get("error", ""))
        title = f"Attempt {error.get('attempt') or number} failed"
        yield TimelineEntry(title, at, "wait", f"{kind}: {words}" if kind else words, _after(before, at))
        before = at or before
    words = "" if detail.errors else item.error
    yield TimelineEntry(
        f"Died: {reason_text(item.reason)}", item.died_at, "bad", words, _after(before, item.died_at)
    )


def _after(before: datetime | None, at: datetime | None) -> str:
    if before is None or at is None or (at - before).total_seconds() < 1:
        return ""
    return ago(before, at)
