"""Sources: places that hold dead letters and list them, the latest death first; several of them as one list.

The dead jobs of a store and the records that the ingest gave up on are here, stream messages in `messages`.

Each source has a cursor of its own. A page of the one list takes from several of them, and not always all
that it fetched: so the list's cursor says, for each source, where its page began and which of its items was
the last to be taken.
"""

from __future__ import annotations

import asyncio
import base64
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import islice
from typing import Any, Literal, Protocol

import orjson

from holdfast.contracts import Backend
from holdfast.deadletters.items import Count, Filter, Item, ItemId, ItemPage, public
from holdfast.model.deadletters import DeadFilter, DeadLetter, DeadPage, fingerprint
from holdfast.model.errors import InvalidInput
from holdfast.model.scopes import EVERYWHERE, Right

_PAGE = 500
_FETCHES = 20
"""Pages of sources that one page of the list may cost beyond the first of each."""
_LEAST = 10
_LONGEST = 100_000
"""Characters of a cursor's content."""
INGEST = "ingest"
"""The consumer that gives them up."""
MOST = 10_000
"""Of those that wait for somebody, the most that are listed."""

Status = Literal["pending", "retrying", "resolved", "abandoned"]
OPEN: frozenset[Status] = frozenset({"pending", "retrying"})
"""What still waits for somebody."""


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
        found = await self.backend.deadletters.page(narrow, after, limit)
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


def filter_matches(where: DeadFilter, item: Item) -> bool:
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


class FailedRecord(Protocol):
    """A record that the ingest gave up on."""

    @property
    def id(self) -> str: ...
    @property
    def channel(self) -> str: ...
    @property
    def partition(self) -> int: ...
    @property
    def position(self) -> str: ...
    @property
    def event_id(self) -> str: ...
    @property
    def source(self) -> str: ...
    @property
    def event_payload(self) -> str: ...
    @property
    def failed_at(self) -> datetime: ...
    @property
    def failure_reason(self) -> str: ...
    @property
    def last_error(self) -> str | None: ...
    @property
    def retry_count(self) -> int: ...
    @property
    def status(self) -> Status: ...
    @property
    def resolution_notes(self) -> str | None: ...


class FailedRecords(Protocol):
    """Where they are, and what can be done about them. Its verbs may block: they get a thread."""

    def find(
        self,
        *,
        status: Status | None = None,
        channel: str | None = None,
        limit: int = 100,
        pending_first: bool = False,
    ) -> Sequence[FailedRecord]:
        """Failed records; with `pending_first` those that need somebody before the others."""

    def each(self, wanted: Callable[[str], bool], after: str | None = None) -> Iterator[FailedRecord]:
        """Those of the channels that are wanted, one by one, after a place in their order."""

    def page(
        self, wanted: Callable[[str], bool], status: Status | None, after: str | None, limit: int, size: int
    ) -> tuple[Sequence[FailedRecord], str | None]:
        """Some of `each`, bounded by records and bytes that are read, and where the next page goes on."""

    def show(self, failed: str) -> FailedRecord:
        """One of them, or `NotFound`."""

    def retry(self, failed: str, by: str) -> FailedRecord:
        """Try it again."""

    def resolve(self, failed: str, by: str, notes: str) -> FailedRecord:
        """It was dealt with in another way."""

    def abandon(self, failed: str, by: str, notes: str) -> FailedRecord:
        """Nothing will be done about it."""


@dataclass(frozen=True, slots=True)
class IngestSource:
    """The records that the ingest gave up on and nobody has dealt with."""

    failed: FailedRecords
    right: Right = EVERYWHERE
    name: str = INGEST
    partition: int = 0

    async def page(self, where: DeadFilter, after: str | None, limit: int) -> ItemPage:
        """From the whole list: there are few, and the WAL has no order by time."""
        items = sorted(await asyncio.to_thread(self._open, where.channel), key=_latest_first)
        wanted = [
            item for item in items if filter_matches(where, item) and (after is None or _place(item) > after)
        ]
        return ItemPage(wanted[:limit], _place(wanted[limit - 1]) if len(wanted) > limit else None)

    async def count(self, where: DeadFilter, most: int | None) -> Count:
        """All at once."""
        return Count(len((await self.page(where, None, MOST)).items), exact=True)

    def _open(self, channel: str | None) -> list[Item]:
        """Without their payloads, of which there is one at a time in memory."""
        found = self.failed.each(lambda name: (channel is None or name == channel) and self.right.holds(name))
        return list(islice((item_of_failed(each) for each in found if each.status in OPEN), MOST))


def _latest_first(item: Item) -> tuple[float, str]:
    return -item.died_at.timestamp(), item.id


def _place(item: Item) -> str:
    """Where an ingest record stands in the list: text that sorts as the list does."""
    return f"{10**17 - int(item.died_at.timestamp() * 1_000_000):018d} {item.id}"


def item_of_failed(record: FailedRecord) -> Item:
    """An ingest record in the list."""
    error = record.last_error or ""
    return Item(
        id=str(ItemId("ingest", record.id)),
        kind="ingest",
        channel=record.channel,
        consumer=INGEST,
        event_id=record.event_id,
        source=record.source,
        reason=record.failure_reason,
        error=error,
        error_kind="",
        fingerprint=fingerprint("", error),
        attempts=record.retry_count + 1,
        died_at=record.failed_at,
        position=record.position,
        partition=record.partition,
    )


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
