"""The listing: several sources as one list, the latest death first, page by page.

Each source has a cursor of its own. A page takes from several of them, and not always all that it fetched: so
the list's cursor says, for each source, where its page began and which of its items was the last to be taken.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import orjson

from holdfast.deadletters.items import Filter, Item, ItemPage
from holdfast.deadletters.sources import Source
from holdfast.model.errors import InvalidInput

_FETCHES = 20
"""Pages of sources that one page of the list may cost beyond the first of each."""
_LEAST = 10
_LONGEST = 100_000
"""Characters of a cursor's content."""


@dataclass(slots=True)
class _Head:
    """How far one source has been taken."""

    source: Source
    began: str | None = None
    """Where the page in `items` begins."""
    last: tuple[str, str] | None = None
    """The item of that page that was taken last: when it died, and its id."""
    items: list[Item] = field(default_factory=list)
    goes_on: str | None = None
    fetched: bool = False
    over: bool = False

    async def fetch(self, wanted: Filter, limit: int) -> None:
        """The next page, or the rest of the one that was begun."""
        if self.fetched:
            self.began, self.last = self.goes_on, None
        page = await self.source.page(wanted.where, self.began, limit)
        self.items, self.goes_on, self.fetched = _rest(page.items, self.last), page.after, True
        self.over = not self.items and page.after is None

    def take(self) -> Item:
        """The next item."""
        item = self.items.pop(0)
        self.last = (item.died_at.isoformat(), item.id)
        return item

    @property
    def ended(self) -> bool:
        """Whether nothing can follow."""
        return self.over or (self.fetched and not self.items and self.goes_on is None)

    def to_json(self) -> list[Any]:
        """The place after what was taken."""
        if self.fetched and not self.items:
            return [self.goes_on]
        return [self.began, *self.last] if self.last else [self.began]


def _rest(items: list[Item], last: tuple[str, str] | None) -> list[Item]:
    """What follows the item that was taken last, also where it is gone by now."""
    if last is None:
        return items
    died, name = datetime.fromisoformat(last[0]), last[1]
    for place, item in enumerate(items):
        if (item.id, item.died_at) == (name, died):  # it may have been requeued, and died again
            return items[place + 1 :]
    return [item for item in items if item.died_at <= died]


async def page_of(sources: Sequence[Source], wanted: Filter, after: str | None, limit: int) -> ItemPage:
    """A page of the one list."""
    taken: list[Item] = []
    heads, fetches = _heads(sources, after), _FETCHES
    size = limit if len(heads) < 2 else min(limit, max(_LEAST, 2 * limit // len(heads)))
    while len(taken) < limit:
        for head in heads:
            # What a source has not searched yet may be later than what another one offers.
            while not head.items and not head.ended and (not head.fetched or fetches):
                fetches -= head.fetched
                await head.fetch(wanted, size)
        if any(not head.items and not head.ended for head in heads):
            break
        ready = [head for head in heads if head.items]
        if not ready:
            return ItemPage(taken, None)
        taken.append(max(ready, key=lambda head: (head.items[0].died_at, head.source.name)).take())
    return ItemPage(taken, _cursor(heads))


def _cursor(heads: Sequence[_Head]) -> str | None:
    places = {head.source.name: head.to_json() for head in heads if not head.ended}
    return (
        base64.urlsafe_b64encode(zlib.compress(orjson.dumps(places))).decode().rstrip("=") if places else None
    )


def _heads(sources: Sequence[Source], after: str | None) -> list[_Head]:
    if after is None:
        return [_Head(source) for source in sources]
    try:
        packed = base64.b64decode(after + "=" * (-len(after) % 4), b"-_", validate=True)
        places = orjson.loads(zlib.decompressobj().decompress(packed, _LONGEST))
        heads = [_head(source, places[source.name]) for source in sources if source.name in places]
        if not heads:
            raise ValueError(after)
        return heads
    except (ValueError, TypeError, zlib.error):
        raise InvalidInput(f"{after!r} is no place in this list; take the one that a page gave you") from None


def _head(source: Source, place: Any) -> _Head:
    match place:
        case [None | str() as began]:
            return _Head(source, began)
        case [None | str() as began, str() as died, str() as name]:
            if datetime.fromisoformat(died).tzinfo is not None:
                return _Head(source, began, (died, name))
    raise ValueError(place)
