"""Sources: places that hold dead letters and list them, the latest death first; the dead jobs of a store."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

from holdfast.contracts import Backend
from holdfast.deadletters.ids import ItemId, public
from holdfast.deadletters.items import Count, Item, ItemPage
from holdfast.model.deadletters import DeadFilter, DeadLetter, DeadPage
from holdfast.model.scopes import EVERYWHERE, Right

_PAGE = 500


class Source(Protocol):
    """One place that holds dead letters."""

    @property
    def name(self) -> str:
        """What a cursor calls it."""

    @property
    def partition(self) -> int:
        """By whose clock its items died."""

    async def page(self, where: DeadFilter, after: str | None, limit: int) -> ItemPage:
        """A page of it; its cursor is this source's own."""

    async def count(self, where: DeadFilter, most: int | None) -> Count:
        """How many it has; about `most` are looked at."""


@dataclass(frozen=True, slots=True)
class JobSource:
    """The dead jobs of one partition, or of one channel or consumer there."""

    partition: int
    backend: Backend
    right: Right = EVERYWHERE
    channel: str | None = None
    consumer: str | None = None

    @property
    def name(self) -> str:
        """By its partition, and what it is narrowed to."""
        narrow = [each for each in (self.channel, self.consumer) if each is not None]
        return ":".join([f"job@{self.partition}", *narrow])

    async def page(self, where: DeadFilter, after: str | None, limit: int) -> ItemPage:
        """The store's own page."""
        found = await self._page(where, after, limit)
        return ItemPage([item_of_job(letter, self.partition) for letter in found.letters], found.after)

    async def _page(self, where: DeadFilter, after: str | None, limit: int) -> DeadPage:
        channel, consumer = self.channel or where.channel, self.consumer or where.consumer
        narrow = replace(where, channel=channel, consumer=consumer)
        found = await self.backend.dead_letters(narrow, after, limit)
        seen = [each for each in found.letters if self.right.holds(each.record.channel, each.record.consumer)]
        return DeadPage(seen, found.after)

    async def count(self, where: DeadFilter, most: int | None) -> Count:
        """Page by page."""
        number, after, pages = 0, None, 0
        while most is None or pages * _PAGE < most:
            page = await self._page(where, after, _PAGE)
            number, after, pages = number + len(page.letters), page.after, pages + 1
            if after is None:
                return Count(number, exact=True)
        return Count(number, exact=False)


def item_of_job(letter: DeadLetter, partition: int) -> Item:
    """A dead job in the list."""
    record = letter.record
    last = record.errors[-1] if record.errors else {}
    return Item(
        id=str(ItemId("job", record.id, record.channel, record.consumer, partition)),
        kind="job",
        channel=record.channel,
        consumer=record.consumer,
        event_id=record.event_id,
        source=record.source,
        reason=record.reason or "",
        error=str(last.get("error", "")),
        error_kind=str(last.get("kind", "")),
        fingerprint=letter.fingerprint,
        attempts=record.attempts,
        died_at=record.ended_at or record.created_at,
        position=record.position,
        partition=partition,
        job=public(record.id, partition),
    )


def meant(where: DeadFilter, item: Item) -> bool:
    """`DeadFilter.holds`, for an item of any kind."""
    return (
        where.channel in (None, item.channel)
        and where.consumer in (None, item.consumer)
        and where.reason in (None, item.reason)
        and where.kind in (None, item.error_kind)
        and where.fingerprint in (None, item.fingerprint)
        and (where.since is None or item.died_at >= where.since)
        and (where.until is None or item.died_at < where.until)
        and (where.text is None or where.text.casefold() in item.error.casefold())
    )
