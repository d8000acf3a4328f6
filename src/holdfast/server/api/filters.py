"""Filters: which dead letters a request means, and whether its caller may ask about them."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import Depends, Query
from pydantic import Field

from holdfast.deadletters.ids import parse_item
from holdfast.deadletters.items import Filter
from holdfast.deadletters.operation import Operation
from holdfast.model.errors import NotFound
from holdfast.model.scopes import Verb
from holdfast.server.api.models import Model, Time
from holdfast.server.auth.caller import Caller
from holdfast.server.context import System
from holdfast.server.refusals import Forbidden

Kind = Literal["job", "ingest", "stream"]
Text = Annotated[str | None, Query(min_length=1, max_length=500)]


class FilterIn(Model):
    """Which dead letters are meant; everything that is given must hold."""

    kinds: list[Kind] | None = Field(default=None, max_length=3)
    channel: str | None = Field(default=None, min_length=1, max_length=128, examples=["orders"])
    consumer: str | None = Field(default=None, min_length=1, max_length=128, examples=["billing"])
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
    channel: Text = None,
    consumer: Text = None,
    reason: Text = None,
    kind: Text = None,
    fingerprint: Text = None,
    since: Annotated[Time | None, Query()] = None,
    until: Annotated[Time | None, Query()] = None,
    text: Text = None,
) -> Filter:
    where = {"channel": channel, "consumer": consumer, "reason": reason, "kind": kind, "text": text}
    return Filter.of(kinds=tuple(kinds or ()), **where, fingerprint=fingerprint, since=since, until=until)


Asked = Annotated[Filter, Depends(_from_query)]
"""A filter in the query."""


def check_filter(caller: Caller, verb: Verb, wanted: Filter) -> None:
    """A caller whose token is for a channel must name that channel; `Forbidden` otherwise."""
    caller.require(verb, wanted.where.channel, wanted.where.consumer)


async def check_item(system: System, caller: Caller, verb: Verb, item_id: str) -> None:
    """Whether a caller may do that with an item; `Forbidden` otherwise.

    Where an ingest record or a message comes from is known only once it was read: whoever is not for all
    channels does not learn which ids exist.
    """
    item = parse_item(item_id)
    channel, consumer = item.channel or None, item.consumer or None
    if item.kind != "job" and not caller.may(verb, channel):
        try:
            found = (await system.letters.show(item_id)).item
        except NotFound:
            raise Forbidden(verb, channel) from None
        channel, consumer = found.channel, found.consumer or None
    caller.require(verb, channel, consumer)


def visible(caller: Caller, operation: Operation) -> bool:
    """Whether an operation is any of the caller's business."""
    request = operation.request
    if operation.actor == caller.actor:
        return True
    if request.filter is not None:
        return caller.may("read", request.filter.where.channel, request.filter.where.consumer)
    items = [parse_item(each) for each in request.items]
    return all(caller.may("read", each.channel or None, each.consumer or None) for each in items)
