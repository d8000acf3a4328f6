"""Publishing: which store takes an event, and what happens while none does."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import groupby
from typing import Any, NamedTuple

from holdfast import failpoints, tracing
from holdfast.bus.partitions import Partition, Partitions, home
from holdfast.bus.spool import Spool, Spooled
from holdfast.model.backoff import backoff_seconds
from holdfast.model.errors import HoldfastError, InvalidInput, Overloaded, TooLarge, Unavailable
from holdfast.model.event import Event, EventColumns, Receipt, check_event, check_time, new_id, new_ids
from holdfast.model.names import check_name

log = logging.getLogger(__name__)

MAX_BATCH = 100_000
MAX_PRIORITY = 100
_TRIES = 4
_PAUSE = 0.2
_PATIENCE = 5.0
_SHARED, _AT_ONCE = 100, 2  # single events in one append, and appends to one channel
_SPOOL_BATCH = 500
_SPOOL_PAUSES = 0.2, 15.0


class Publisher:
    """Appends events, each to the store that it belongs to.

    With a spool, it keeps there what no store takes now. While the spool holds anything, everything goes
    through it, so that a process's events stay in order.
    """

    def __init__(self, partitions: Partitions, spool: Spool | None = None) -> None:
        self._partitions, self._spool = partitions, spool
        self._shared = _SharedAppends(partitions)
        self._spool_turn = asyncio.Lock()
        self._spool_filled = asyncio.Event()
        self._draining: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Open the spool, if there is one; what an earlier process left there is sent first."""
        if self._spool is None:
            return
        await asyncio.to_thread(self._spool.open)
        self._draining = asyncio.create_task(self._drain(self._spool))
        if len(self._spool):
            log.info("the spool holds %s events of an earlier process", len(self._spool))
            self._spool_filled.set()

    async def close(self) -> None:
        """Stop sending from the spool. What is left stays there for the next process."""
        await self._shared.close()
        if self._spool is not None and self._draining is not None:
            self._draining.cancel()
            await asyncio.gather(self._draining, return_exceptions=True)
            await asyncio.to_thread(self._spool.close)

    async def publish(
        self, channel: str, events: Sequence[Event], at: datetime | None, priority: int, connection: Any
    ) -> list[Receipt]:
        """Append events, all or none on each store. Returns receipts in the order of the events.

        A receipt without a position means durable in the spool, and not yet in the channel.
        """
        if connection is not None and not all(
            partition.backend.capabilities.joins_transactions for partition in self._partitions.all
        ):
            raise InvalidInput(
                "this store has no transaction that a publish could join; leave out connection"
            )
        with tracing.publishing(channel, events) as traced:
            named = prepared(channel, traced, at, priority)
            options = {"at": at, "priority": priority, "connection": connection}
            if self._spool is None:
                # An id that was made here does not bind the event to a store.
                return await self._route(channel, named, traced, options)
            if connection is not None or not len(self._spool):
                try:
                    return await self._route(channel, named, named, options)
                except Unavailable as error:
                    if connection is not None:
                        raise
                    log.warning("no store takes events, they go to the spool: %s", error)
            return await self._keep(self._spool, [Spooled(channel, _timed(e), at, priority) for e in named])

    async def _route(
        self, channel: str, events: Sequence[Event], routed_by: Sequence[Event], options: dict[str, Any]
    ) -> list[Receipt]:
        """Send each event to the store of its key or id in `routed_by`, the others to the least loaded."""
        stores = self._partitions.all
        if len(stores) == 1:
            return await self._send(stores[0], channel, events, options)
        homes = [home(channel, event, len(stores)) for event in routed_by]
        # Events that may go anywhere stay together, so that a batch of them is all or none.
        anywhere = (await self._partitions.least_loaded()).index if None in homes else 0
        routes: dict[int, list[int]] = defaultdict(list)
        for place, index in enumerate(homes):
            routes[anywhere if index is None else index].append(place)
        receipts: dict[int, Receipt] = {}
        for index, places in routes.items():
            made = await self._send(stores[index], channel, [events[place] for place in places], options)
            receipts.update(zip(places, made, strict=True))
        return [receipts[place] for place in range(len(events))]

    async def _send(
        self, partition: Partition, channel: str, events: Sequence[Event], options: dict[str, Any]
    ) -> list[Receipt]:
        """After an unknown outcome, try again at the same store with the same ids: nothing is doubled."""
        await self._partitions.ready(partition)
        # In the caller's own transaction only the caller can try again.
        tries = _TRIES if options["connection"] is None else 1
        deadline = time.monotonic() + _PATIENCE
        for attempt in range(1, tries + 1):
            try:
                receipts = await self._append(partition, channel, events, options)
            except Unavailable as error:
                partition.count_error("publish", error)
                if attempt == tries or time.monotonic() > deadline:
                    partition.health.failed(str(error))
                    raise
                await asyncio.sleep(backoff_seconds(attempt, _PAUSE, _PATIENCE, jitter=0.0))
            except Exception as error:
                partition.count_error("publish", error)
                raise
            else:
                partition.health.load += len(events)
                return receipts
        raise AssertionError("a loop of at least one try returns or raises")

    async def _append(
        self, partition: Partition, channel: str, events: Sequence[Event], options: dict[str, Any]
    ) -> list[Receipt]:
        if len(events) == 1 and options["connection"] is None:
            to = _Target(partition.index, channel, options["at"], options["priority"])
            return [await self._shared.publish(to, events[0])]
        return await partition.backend.log.publish(channel, events, **options)

    async def _keep(self, spool: Spool, entries: list[Spooled]) -> list[Receipt]:
        async with self._spool_turn:
            await asyncio.to_thread(spool.append, entries)
        failpoints.hit("spool.after_append")
        self._spool_filled.set()
        return [Receipt(entry.event.id, "") for entry in entries]

    async def _drain(self, spool: Spool) -> None:
        """Send the oldest events of the spool, for as long as there are any. Runs until cancelled."""
        failures = 0
        while True:
            await self._spool_filled.wait()
            try:
                await self._drain_once(spool)
                failures = 0
            except Exception as error:  # whatever it is, what is in the spool must go out in the end
                failures += 1
                log.warning("the spool's %s events cannot be sent yet: %s", len(spool), error)
                await asyncio.sleep(backoff_seconds(failures, *_SPOOL_PAUSES))

    async def _drain_once(self, spool: Spool) -> None:
        entries = await asyncio.to_thread(spool.peek, _SPOOL_BATCH)
        for _, alike in groupby(entries, key=lambda entry: (entry.channel, entry.at, entry.priority)):
            sent = list(alike)
            await self._send_spooled(spool, sent)
            failpoints.hit("spool.after_publish")
            async with self._spool_turn:
                await asyncio.to_thread(spool.advance, len(sent))
            failpoints.hit("spool.after_advance")
        if not len(spool):
            self._spool_filled.clear()

    async def _send_spooled(self, spool: Spool, entries: Sequence[Spooled]) -> None:
        """Publish entries of one delivery at once; where one is refused for good, each by itself."""
        first = entries[0]
        options = {"at": first.at, "priority": first.priority, "connection": None}
        try:
            named = prepared(first.channel, [entry.event for entry in entries], first.at, first.priority)
            await self._route(first.channel, named, named, options)
        except (Unavailable, Overloaded):
            raise
        except HoldfastError as error:
            if len(entries) > 1:
                for entry in entries:
                    await self._send_spooled(spool, [entry])
                return
            log.error("event %s of the spool is refused: %s", first.event.id, error)
            await asyncio.to_thread(spool.set_aside, first, error)


class _Target(NamedTuple):
    """Where single events go that can share an append."""

    partition: int
    channel: str
    at: datetime | None
    priority: int


class _Entry(NamedTuple):
    event: Event
    result: asyncio.Future[Receipt]


class _Queue:
    """Events of one target: how many appends are on their way, and what waits for one to end."""

    def __init__(self) -> None:
        self.appends = 0
        self.waiting: list[_Entry] = []


class _SharedAppends:
    """Single events that are published at the same time share an append, and so a commit.

    The first ones go out at once. While they are on their way others wait, and then go together. Two appends
    at a time: one that waits for somebody's open transaction does not hold up all.
    """

    def __init__(self, partitions: Partitions) -> None:
        self._partitions = partitions
        self._queues: dict[_Target, _Queue] = defaultdict(_Queue)
        self._tasks: set[asyncio.Task[None]] = set()

    async def publish(self, to: _Target, event: Event) -> Receipt:
        """Append an event. Raises what it would raise by itself."""
        queue = self._queues[to]
        if queue.appends < _AT_ONCE:
            queue.appends += 1
            try:
                [receipt] = await self._append(to, [event])
            finally:
                self._go_on(to, queue)
            return receipt
        result: asyncio.Future[Receipt] = asyncio.get_running_loop().create_future()
        queue.waiting.append(_Entry(event, result))
        return await result

    async def close(self) -> None:
        """Wait for what is on its way."""
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _go_on(self, to: _Target, queue: _Queue) -> None:
        """Send what waits; an event whose publisher was cancelled meanwhile is not sent."""
        waiting = [entry for entry in queue.waiting if not entry.result.done()]
        queue.waiting = waiting[_SHARED:]
        if waiting:
            task = asyncio.create_task(self._send(to, queue, waiting[:_SHARED]))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            return
        queue.appends -= 1
        if not queue.appends:
            del self._queues[to]

    async def _send(self, to: _Target, queue: _Queue, entries: Sequence[_Entry]) -> None:
        try:
            await self._append_all(to, entries)
        finally:
            for entry in entries:
                entry.result.cancel()  # does nothing to what is done
            self._go_on(to, queue)

    async def _append_all(self, to: _Target, entries: Sequence[_Entry]) -> None:
        try:
            receipts = await self._append(to, [entry.event for entry in entries])
        except Exception as error:
            if len(entries) > 1 and not isinstance(error, Unavailable):
                # Something is wrong with one of them, and all were refused.
                for entry in entries:
                    await self._append_all(to, [entry])
                return
            for entry in entries:
                if not entry.result.done():
                    entry.result.set_exception(error)
        else:
            for entry, receipt in zip(entries, receipts, strict=True):
                if not entry.result.done():
                    entry.result.set_result(receipt)

    async def _append(self, to: _Target, events: Sequence[Event]) -> list[Receipt]:
        log = self._partitions.all[to.partition].backend.log
        return await log.publish(to.channel, events, at=to.at, priority=to.priority)


def prepared(channel: str, events: Sequence[Event], at: datetime | None, priority: int) -> Sequence[Event]:
    """Return the events under ids that every try carries. Raises `InvalidInput` for what cannot be sent."""
    check_name(channel)
    if len(events) > MAX_BATCH:
        raise TooLarge(f"a batch of {len(events)} events; the limit is {MAX_BATCH}")
    if at is not None:
        check_time("at", at)
    if not -MAX_PRIORITY <= priority <= MAX_PRIORITY:
        raise InvalidInput(f"priority {priority} is outside -{MAX_PRIORITY} to {MAX_PRIORITY}")
    if len(events) == 1:
        [event] = events
        check_event(event)
        return events if event.id else [Event(event.data, new_id(), *event[2:])]
    if not events:
        return []
    batch = EventColumns.of(events)
    if not batch.has_only_data():
        for event in events:
            check_event(event)
    data, names, *others = batch.columns
    ids = [name or fresh for name, fresh in zip(names, new_ids(len(events)), strict=True)]
    return EventColumns([data, ids, *others])


def _timed(event: Event) -> Event:
    """An event keeps the time at which it was published, not that at which a store was back."""
    return event if event.time is not None else Event._make((*event[:5], datetime.now(UTC), event[6]))
