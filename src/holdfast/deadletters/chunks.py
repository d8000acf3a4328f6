"""Chunks: which items an operation comes to next, and where it goes on after them; how many there are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.deadletters.acts import Acts, Fate
from holdfast.deadletters.ids import ItemId, parse_item
from holdfast.deadletters.items import Count, Filter
from holdfast.deadletters.operation import Operation
from holdfast.deadletters.sources import Source
from holdfast.model.scopes import Right

_PAGE = 500
_ITEMS = "items"
_OVER = ""
"""In place of a cursor: nothing follows in this source."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Some items, the fate of those that are left alone, and where to go on."""

    items: list[ItemId]
    left_alone: list[Fate]
    source: str
    after: str


async def next_chunk(acts: Acts, operation: Operation, limit: int) -> Chunk | None:
    """What comes after the place where the operation stands; None: nothing."""
    if operation.request.items:
        return await _of_items(acts, operation, limit)
    stand, wanted = operation.stand, operation.request.filter or Filter()
    for source in await acts.letters.sources(wanted, Right("operate", operation.rights)):
        if source.name > stand.source:
            chunk = await _of_source(acts, operation, source, None, limit)
        elif source.name == stand.source and stand.after != _OVER:
            chunk = await _of_source(acts, operation, source, stand.after, limit)
        else:
            continue
        if chunk is not None:
            return chunk
    return None


async def _of_items(acts: Acts, operation: Operation, limit: int) -> Chunk | None:
    start = int(operation.stand.after or 0)
    taken = [parse_item(each) for each in operation.request.items[start : start + limit]]
    if not taken:
        return None
    return await _chunk(acts, operation, taken, [None] * len(taken), _ITEMS, str(start + len(taken)))


async def _of_source(
    acts: Acts, operation: Operation, source: Source, after: str | None, limit: int
) -> Chunk | None:
    wanted = (operation.request.filter or Filter()).before(operation.asked(source.partition))
    while True:
        page = await source.page(wanted.where, after, limit)
        if page.items:
            items = [parse_item(item.id) for item in page.items]
            attempts = [item.attempts for item in page.items]
            return await _chunk(acts, operation, items, attempts, source.name, page.after or _OVER)
        if page.after is None:
            return None
        after = page.after


async def _chunk(
    acts: Acts,
    operation: Operation,
    items: list[ItemId],
    attempts: Sequence[int | None],
    source: str,
    after: str,
) -> Chunk:
    if not operation.request.options.only_exhausted:
        return Chunk(items, [], source, after)
    left = await acts.not_exhausted(items, attempts)
    alone = {fate.item for fate in left}
    return Chunk([item for item in items if item not in alone], left, source, after)


async def count_exhausted(acts: Acts, wanted: Filter, most: int | None, right: Right) -> Count:
    """How many of those that a filter means have no attempt left; about `most` are looked at."""
    number, pages = 0, 0
    for source in await acts.letters.sources(wanted, right):
        after = None
        while most is None or pages * _PAGE < most:
            page = await source.page(wanted.where, after, _PAGE)
            items = [parse_item(item.id) for item in page.items]
            left = await acts.not_exhausted(items, [item.attempts for item in page.items])
            number, pages, after = number + len(items) - len(left), pages + 1, page.after
            if after is None:
                break
        else:
            return Count(number, exact=False)
    return Count(number, exact=True)
