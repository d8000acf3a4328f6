"""Dead letters: one list of three kinds, clusters, and each one whole."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime
from typing import Annotated, Any

from fastapi import Depends, Query, Response
from pydantic import BaseModel, ConfigDict

from holdfast.deadletters.items import ClusterView, Item
from holdfast.server.admission import Router
from holdfast.server.answers import answer, data_of
from holdfast.server.api.filters import Asked, check_filter, check_item
from holdfast.server.api.models import Model
from holdfast.server.auth.caller import Caller
from holdfast.server.auth.guard import needs
from holdfast.server.context import Known
from holdfast.server.parameters import After, ItemId, Limit, Name, Page
from holdfast.server.turns import Turns

router = Router(tags=["dead letters"], prefix="/deadletters")

Reads = Annotated[Caller, Depends(needs("read", filtered=True))]

LIST = "dead letters"
"""What cursors call it."""


class ItemOut(Model):
    """A dead letter in the list."""

    id: str
    kind: str
    channel: str
    consumer: str
    event_id: str
    source: str
    reason: str
    error: str
    error_kind: str
    fingerprint: str
    attempts: int
    died_at: datetime
    position: str
    partition: int
    job: str

    @classmethod
    def of(cls, item: Item) -> ItemOut:
        """From the item."""
        return cls(**asdict(item))


class DetailOut(BaseModel):
    """Everything about a dead letter: the item, its event with headers, and every attempt's error."""

    model_config = ConfigDict(extra="allow")

    id: str
    kind: str
    channel: str
    headers: dict[str, str]
    errors: list[dict[str, Any]]


class ClusterOut(Model):
    """Dead letters of a consumer whose last errors are alike."""

    channel: str
    consumer: str
    fingerprint: str
    count: int
    pattern: str
    """The error with placeholders for what differs."""
    sample: ItemOut

    @classmethod
    def of(cls, cluster: ClusterView) -> ClusterOut:
        """From the cluster."""
        names = ("channel", "consumer", "fingerprint", "count", "pattern")
        return cls(**{name: getattr(cluster, name) for name in names}, sample=ItemOut.of(cluster.sample))


class CountOut(Model):
    """How many dead letters a filter means."""

    count: int
    exact: bool
    """False: at least so many."""


@router.get("")
async def list_dead_letters(
    system: Known, caller: Reads, wanted: Asked, limit: Limit = 100, after: After = None
) -> Page[ItemOut]:
    """Dead letters, the latest death first. A page can be short, even empty, and have more behind it."""
    check_filter(caller, "read", wanted)
    place = await system.cursors.open(caller, LIST, after)
    page = await system.letters.find(wanted, place, limit, caller.right("read"))
    goes_on = await system.cursors.seal(caller, LIST, page.after)
    return Page(items=[ItemOut.of(each) for each in page.items], after=goes_on)


@router.get("/count")
async def count_dead_letters(system: Known, caller: Reads, wanted: Asked) -> CountOut:
    """How many a filter means, counted up to 50,000 where no counter knows."""
    check_filter(caller, "read", wanted)
    count = await system.letters.count(wanted, 50_000, caller.right("read"))
    return CountOut(count=count.number, exact=count.exact)


@router.get("/clusters")
async def list_clusters(
    system: Known,
    caller: Reads,
    channel: Annotated[Name | None, Query()] = None,
    consumer: Annotated[Name | None, Query()] = None,
    limit: Limit = 100,
) -> list[ClusterOut]:
    """Dead letters by what went wrong, the largest cluster first; exact."""
    caller.require("read", channel, consumer)
    found = await system.letters.clusters(channel, consumer, limit, caller.right("read"))
    return [ClusterOut.of(each) for each in found]


@router.get("/{item}", response_model=DetailOut)
async def show_dead_letter(item: ItemId, system: Known, caller: Reads) -> Response:
    """One dead letter with its event and every attempt's error."""
    await check_item(system, caller, "read", item)
    detail, turns = await system.letters.show(item), Turns()
    given = {"data": detail.event.data, "original": detail.original or b""}
    shown = {name: await data_of(name, data, turns) for name, data in given.items()}
    return answer(detail.to_json(lambda name, _: shown[name]))
