"""Dead letters: by what went wrong first, then one by one."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Request, Response

from holdfast.deadletters.items import ClusterView, ConsumerDead, Count, Item
from holdfast.model.scopes import Right
from holdfast.server.api.deadletters import LIST
from holdfast.server.auth.caller import Caller
from holdfast.server.context import Known, System
from holdfast.server.pages.house import PageRoute, page
from holdfast.server.pages.visit import Visit, visits
from holdfast.server.pages.wanted import KINDS, REASONS, Wanted
from holdfast.server.parameters import After

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
class Letters:
    """Everything that the page shows."""

    wanted: Wanted
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
async def letters(
    request: Request,
    system: Known,
    visit: Annotated[Visit, visits("read", filtered=True)],
    after: After = None,
) -> Response:
    """What died: counts, clusters, and the list that a filter means."""
    wanted = Wanted.of(request.query_params)
    view = await _look(system, visit.caller, wanted, after)
    return page(request, "letters.html", visit, view=view, first=after is None)


async def _look(system: System, caller: Caller, wanted: Wanted, after: str | None) -> Letters:
    right = caller.right("read")
    place = await system.cursors.open(caller, LIST, after)
    found = await system.letters.find(wanted.filter(), place, ITEMS, right)
    consumers = await system.letters.status(right)
    clusters = await _clusters(system, right, wanted)
    reasons: Counter[str] = Counter()
    for each in consumers:
        reasons.update(each.reasons)
    rows = cluster_rows(clusters, caller)
    return Letters(
        wanted=wanted,
        dead=reasons.total(),
        reasons=dict(reasons.most_common()),
        consumers=[each for each in consumers if each.dead],
        clusters=rows[:CLUSTERS],
        more_clusters=max(len(rows) - CLUSTERS, 0),
        items=found.items,
        count=await system.letters.count(wanted.filter(), COUNTED, right),
        after=await system.cursors.seal(caller, LIST, found.after),
        operable=wanted.allowed(caller, "operate"),
        now=await (await system.operations.first()).now(),
        reason_names={str(reason): words for reason, words in REASONS.items()},
        kind_names=KINDS,
    )


async def _clusters(system: System, right: Right, wanted: Wanted) -> list[ClusterView]:
    """Those of the channel and the consumer that are wanted; none where one cluster is wanted already."""
    if "fingerprint" in wanted.given or wanted.given.get("letters", "job") != "job":
        return []
    where = wanted.filter().where
    return await system.letters.clusters(where.channel, where.consumer, MOST_CLUSTERS, right)


def cluster_rows(clusters: list[ClusterView], caller: Caller) -> list[ClusterRow]:
    """The clusters with their share, the largest first."""
    largest = max((each.count for each in clusters), default=1)
    return [
        ClusterRow(
            each,
            100 * each.count / largest,
            Wanted(
                {"channel": each.channel, "consumer": each.consumer, "fingerprint": each.fingerprint}
            ).query(),
            caller.may("operate", each.channel, each.consumer),
        )
        for each in clusters
    ]
