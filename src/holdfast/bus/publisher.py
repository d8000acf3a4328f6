"""The publisher: which store takes an event, and what happens when a store does not answer."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from holdfast.bus.partitions import Partition, Partitions, home
from holdfast.model.batch import Batch
from holdfast.model.errors import InvalidInput, TooLarge, Unavailable
from holdfast.model.event import Event, Receipt, check_event, check_time, has_only_data, new_ids
from holdfast.model.names import check_name

MAX_BATCH = 100_000
MAX_PRIORITY = 100
_TRIES = 4
_PAUSE = 0.1
_PATIENCE = 5.0


class Publisher:
    """Appends batches, each to the stores that its events belong to."""

    def __init__(self, partitions: Partitions) -> None:
        self._partitions = partitions

    async def publish(
        self, channel: str, events: Sequence[Event], at: datetime | None, priority: int, connection: Any
    ) -> list[Receipt]:
        """All or none on each store; receipts come in the order of the events."""
        named = prepared(channel, events, at, priority)
        options = {"at": at, "priority": priority, "connection": connection}
        if len(self._partitions.all) == 1:
            return await self._send(self._partitions.all[0], channel, named, options)
        receipts: dict[int, Receipt] = {}
        for partition, places in await self._routes(channel, events):
            made = await self._send(partition, channel, [named[place] for place in places], options)
            receipts.update(zip(places, made, strict=True))
        return [receipts[place] for place in range(len(events))]

    async def _routes(self, channel: str, events: Sequence[Event]) -> list[tuple[Partition, Sequence[int]]]:
        everything = self._partitions.all
        homes = [home(channel, event, len(everything)) for event in events]
        # Events that may go anywhere stay together, so that a batch of them is all or none.
        anywhere = (await self._partitions.least_loaded()).index if None in homes else None
        routes: dict[int | None, list[int]] = defaultdict(list)
        for place, index in enumerate(homes):
            routes[anywhere if index is None else index].append(place)
        return [(everything[index], places) for index, places in routes.items() if index is not None]

    async def _send(
        self, partition: Partition, channel: str, batch: Sequence[Event], options: dict[str, Any]
    ) -> list[Receipt]:
        """An unknown outcome is asked again at the same store, with the same ids: it cannot double."""
        await self._partitions.ready(partition)
        # In the caller's own transaction only the caller can try again.
        tries = _TRIES if options["connection"] is None else 1
        deadline = time.monotonic() + _PATIENCE
        for attempt in range(1, tries + 1):
            try:
                receipts = await partition.backend.publish(channel, batch, **options)
            except Unavailable as error:
                partition.count_error("publish", error)
                if attempt == tries or time.monotonic() > deadline:
                    partition.health.failed(str(error))
                    raise
                await asyncio.sleep(_PAUSE * 2**attempt)
            except Exception as error:
                partition.count_error("publish", error)
                raise
            else:
                partition.health.load += len(batch)
                return receipts
        raise AssertionError("a loop of at least one try returns or raises")


def prepared(channel: str, events: Sequence[Event], at: datetime | None, priority: int) -> Sequence[Event]:
    """The events, checked, under ids that every try carries."""
    check_name(channel)
    _check_delivery(len(events), at, priority)
    if not events:
        return []
    data, names, *others = columns = Batch.of(events).columns
    if not has_only_data(columns):
        for event in events:
            check_event(event)
    ids = [name or fresh for name, fresh in zip(names, new_ids(len(events)), strict=True)]
    return Batch([data, ids, *others])


def _check_delivery(count: int, at: datetime | None, priority: int) -> None:
    if count > MAX_BATCH:
        raise TooLarge(f"a batch of {count} events; the limit is {MAX_BATCH}")
    if at is not None:
        check_time("at", at)
    if not -MAX_PRIORITY <= priority <= MAX_PRIORITY:
        raise InvalidInput(f"priority {priority} is outside -{MAX_PRIORITY} to {MAX_PRIORITY}")
