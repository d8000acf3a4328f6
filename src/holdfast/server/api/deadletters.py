"""Dead letters: one list of three kinds, clusters, each one whole; filters, and who may use which."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime
from typing import Annotated, Any, Literal

from fastapi import Depends, Query, Response
from pydantic import BaseModel, ConfigDict, Field

from holdfast.deadletters.items import ClusterView, Filter, Item, parse_item
from holdfast.deadletters.operation import ON_CONSUMERS, Operation
from holdfast.model.errors import NotFound
from holdfast.model.names import is_ours
from holdfast.model.scopes import Verb
from holdfast.server.api.models import After, ItemId, Limit, Model, Name, Page, Time, data_json, json_response
from holdfast.server.auth.caller import Caller
from holdfast.server.auth.guard import ReadsFiltered, Router
from holdfast.server.bodies import TimeSlice
from holdfast.server.errors import Forbidden
from holdfast.server.system import Known, System

router = Router(tags=["dead letters"], prefix="/deadletters")

LIST = "dead letters"
"""What its cursors are for."""
Kind = Literal["job", "ingest", "stream"]
Text = Annotated[str | None, Query(min_length=1, max_length=500)]


class FilterIn(Model):
    """Which dead letters are meant; everything that is given must hold."""

    kinds: list[Kind] | None = Field(default=None, max_length=3)
    channel: Name | None = Field(default=None, examples=["orders"])
    consumer: Name | None = Field(default=None, examples=["billing"])
    reason: str | None = Field(default=None, min_length=1, max_length=500)
    kind: str | None = Field(default=None, min_length=1, max_length=500)
    """The class of the last error."""
    fingerprint: str | None = Field(default=None, min_length=1, max_length=500)
    since: Time | None = None
    until: Time | None = None
    text: str | None = Field(default=None, min_length=1, max_length=500)
    """Part of the last error."""

    def filter(self) -> Filter:
        """The filter, checked."""
        return Filter.of(**self.model_dump())


async def _from_query(
    kinds: Annotated[list[Kind] | None, Query(max_length=3)] = None,
    channel: Annotated[Name | None, Query()] = None,
    consumer: Annotated[Name | None, Query()] = None,
    reason: Text = None,
    kind: Text = None,
    fingerprint: Text = None,
    since: Annotated[Time | None, Query()] = None,
    until: Annotated[Time | None, Query()] = None,
    text: Text = None,
) -> Filter:
    where = {"channel": channel, "consumer": consumer, "reason": reason, "kind": kind, "text": text}
    return Filter.of(kinds=tuple(kinds or ()), **where, fingerprint=fingerprint, since=since, until=until)


QueryFilter = Annotated[Filter, Depends(_from_query)]
"""A filter in the query."""


def check_filter(caller: Caller, verb: Verb, wanted: Filter) -> None:
    """A caller whose token is for a channel must name that channel; `Forbidden` otherwise."""
    caller.require(verb, wanted.where.channel, wanted.where.consumer)


async def check_item(system: System, caller: Caller, verb: Verb, item_id: str) -> None:
    """Whether a caller may do that with an item; `Forbidden` otherwise.

    A job and a message belong to the channel that their ids name. Where an ingest record comes from is known
    only once it was read: one of somebody else's is refused in the words of one that was never there.
    """
    item = parse_item(item_id)
    if item.kind != "ingest":
        caller.require(verb, item.channel, item.consumer or None)
        return
    try:
        channel = (await system.deadletters.show(item_id)).item.channel
    except NotFound:
        caller.require(verb)
        raise
    check_failed(caller, verb, channel)


def check_failed(caller: Caller, verb: Verb, channel: str) -> None:
    """Raise `Forbidden` unless the caller may do that with a failed event of this channel. It names none:
    whoever is not for all of them does not learn which ids exist, and where they come from."""
    if not caller.may(verb, channel):
        raise Forbidden(verb)


def visible(caller: Caller, operation: Operation) -> bool:
    """Whether an operation is any of the caller's business: it is theirs, or they may read all that it can
    tell about. What becomes of a message names its dead-letter channel."""
    request = operation.request
    if operation.actor == caller.actor and caller.scopes in operation.rights:
        return True
    if request.filter is not None:
        where, kinds = request.filter.where, request.filter.kinds
        messages = "stream" in kinds and request.kind not in ON_CONSUMERS
        if messages and not (where.channel is not None and is_ours(where.channel)):
            return caller.may("read")
        return caller.may("read", where.channel, where.consumer)
    items = [parse_item(each) for each in request.items]
    return all(caller.may("read", each.channel or None, each.consumer or None) for each in items)


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
    system: Known, caller: ReadsFiltered, wanted: QueryFilter, limit: Limit = 100, after: After = None
) -> Page[ItemOut]:
    """Dead letters, the latest death first. A page can be short, even empty, and have more behind it."""
    check_filter(caller, "read", wanted)
    place = await system.cursors.open(caller, LIST, after)
    page = await system.deadletters.find(wanted, place, limit, caller.right("read"))
    next_page = await system.cursors.seal(caller, LIST, page.after)
    return Page(items=[ItemOut.of(each) for each in page.items], after=next_page)


@router.get("/count")
async def count_dead_letters(system: Known, caller: ReadsFiltered, wanted: QueryFilter) -> CountOut:
    """How many a filter means, counted up to 50,000 where no counter knows."""
    check_filter(caller, "read", wanted)
    count = await system.deadletters.count(wanted, 50_000, caller.right("read"))
    return CountOut(count=count.number, exact=count.exact)


@router.get("/clusters")
async def list_clusters(
    system: Known,
    caller: ReadsFiltered,
    channel: Annotated[Name | None, Query()] = None,
    consumer: Annotated[Name | None, Query()] = None,
    limit: Limit = 100,
) -> list[ClusterOut]:
    """Dead letters by what went wrong, the largest cluster first; exact."""
    caller.require("read", channel, consumer)
    found = await system.deadletters.clusters(channel, consumer, limit, caller.right("read"))
    return [ClusterOut.of(each) for each in found]


@router.get("/{item}", response_model=DetailOut)
async def show_dead_letter(item: ItemId, system: Known, caller: ReadsFiltered) -> Response:
    """One dead letter with its event and every attempt's error."""
    await check_item(system, caller, "read", item)
    detail, timeslice = await system.deadletters.show(item), TimeSlice()
    given = {"data": detail.event.data, "original": detail.original or b""}
    shown = {name: await data_json(name, data, timeslice) for name, data in given.items()}
    return json_response(detail.to_json(lambda name, _: shown[name]))
