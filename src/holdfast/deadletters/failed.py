"""Ingest records: what this package needs of the service that keeps them, and how they are listed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from typing import Literal, Protocol

from holdfast.deadletters.ids import ItemId
from holdfast.deadletters.items import Count, Item, ItemPage
from holdfast.deadletters.sources import meant
from holdfast.model.deadletters import DeadFilter
from holdfast.model.fingerprint import fingerprint
from holdfast.model.scopes import EVERYWHERE, Right

INGEST = "ingest"
"""The consumer that gives them up."""
MOST = 10_000
"""Of those that wait for somebody, the most that are listed."""

Status = Literal["pending", "retrying", "resolved", "abandoned"]
OPEN: frozenset[Status] = frozenset({"pending", "retrying"})
"""What still waits for somebody."""


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
        wanted = [item for item in items if meant(where, item) and (after is None or _place(item) > after)]
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
