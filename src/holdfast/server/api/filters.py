"""Filters: which dead letters a request means, and whether its caller may ask about them."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import Depends, Query
from pydantic import Field

from holdfast.deadletters.ids import parse_item
from holdfast.deadletters.items import Filter
from holdfast.deadletters.operation import Operation
from holdfast.model.errors import NotFound
from holdfast.model.names import is_ours
from holdfast.model.scopes import Verb
from holdfast.server.api.models import Model, Time
from holdfast.server.auth.caller import Caller
from holdfast.server.context import System
from holdfast.server.parameters import Name
from holdfast.server.refusals import Forbidden

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


Asked = Annotated[Filter, Depends(_from_query)]
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
        channel = (await system.letters.show(item_id)).item.channel
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
    tell about. What becomes of a message names the dead-letter channel that it stands in."""
    request = operation.request
    if operation.actor == caller.actor and caller.scopes in operation.rights:
        return True
    if request.filter is not None:
        where, kinds = request.filter.where, request.filter.kinds
        messages = "stream" in kinds and request.kind != "remove_consumer"
        if messages and not (where.channel is not None and is_ours(where.channel)):
            return caller.may("read")
        return caller.may("read", where.channel, where.consumer)
    items = [parse_item(each) for each in request.items]
    return all(caller.may("read", each.channel or None, each.consumer or None) for each in items)
