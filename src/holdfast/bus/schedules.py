"""The verbs on schedules: each lives on one store, which a hash of its channel and name chooses."""

from __future__ import annotations

import logging
import secrets
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from datetime import datetime
from typing import Any

from holdfast.bus.partitions import Partition, Partitions, home
from holdfast.contracts import Backend
from holdfast.model.errors import Duration, HoldfastError, InvalidInput, NotFound, Outdated
from holdfast.model.event import DEFAULT_TYPE, Event, Receipt, check_event, new_id
from holdfast.model.names import check_name
from holdfast.upkeep import schedules
from holdfast.upkeep.schedules import Content, Missed, Schedule
from holdfast.upkeep.timing import Timing

log = logging.getLogger(__name__)

DEFAULT_MISSED: Missed = "once"
DEFAULT_MOST = 1_000
_TRIES = 50
_PAGE = 500


class Schedules:
    """Creates, changes, lists and removes the schedules of a deployment."""

    def __init__(self, partitions: Partitions, namespace: str) -> None:
        self._partitions, self._namespace = partitions, namespace

    async def put(self, name: str, channel: str, **definition: Any) -> Schedule:
        """Create a schedule or give it this definition, and return it. See `definition`.

        One that says the same already stays as it is. A change of cron, tz or interval counts from now;
        any other keeps the next tick. One that is paused stays so.
        """
        store, _ = await self._find(name, channel)
        for _ in range(_TRIES):
            old, now = await self._get(store, name, channel), await store.now()
            wanted = self.define(name, channel, now, **definition)
            if old is not None and old.same_definition(wanted):
                return old
            changed = wanted if old is None else _changed(old, wanted, now)
            if (stored := await self._write(store, changed)) is not None:
                return stored
        raise _contended(name, channel)

    def define(
        self,
        name: str,
        channel: str,
        now: datetime,
        *,
        cron: str | None = None,
        every: Duration | None = None,
        tz: str | None = None,
        data: Any = None,
        type: str = DEFAULT_TYPE,  # noqa: A002 - CloudEvents' own name
        key: str | None = None,
        headers: dict[str, str] | None = None,
        priority: int = 0,
        jitter: Duration = 0,
        missed: str = DEFAULT_MISSED,
        max_missed: int = DEFAULT_MOST,
    ) -> Schedule:
        """Return a schedule as it would begin at a time. Raises `InvalidInput`; nothing is stored."""
        schedules.check(name, channel, missed, max_missed)
        timing = Timing.of(now, cron=cron, every=every, tz=tz, jitter=jitter)
        made = Schedule(
            name=name,
            channel=channel,
            timing=timing,
            content=Content.of(data, type, key, headers, priority),
            missed=missed,  # type: ignore[arg-type]  # checked above
            max_missed=max_missed,
            incarnation=secrets.token_hex(4),
            next=timing.next(now),
            created_at=now,
        )
        check_event(made.event(now))  # with the headers that are added, too
        return made

    async def preview(self, name: str, channel: str, **definition: Any) -> list[datetime]:
        """Return when the next ten ticks of a definition would be due. Nothing is stored."""
        now = await self._now(name, channel)
        return self.define(name, channel, now, **definition).upcoming(now)

    async def get(self, name: str, channel: str) -> Schedule:
        """Return a schedule. Raises `NotFound`."""
        return (await self._existing(name, channel))[1]

    async def upcoming(self, schedule: Schedule) -> list[datetime]:
        """Return when the next ten ticks of a stored schedule are due."""
        return schedule.upcoming(await self._now(schedule.name, schedule.channel))

    async def all(self, channel: str | None = None) -> list[Schedule]:
        """Return all schedules, of one channel or of all, the next one that is due first."""
        if channel is not None:
            check_name(channel)
        found: dict[tuple[str, str], Schedule] = {}
        for partition in self._partitions.all:
            store = (await self._partitions.ready(partition)).backend
            async for schedule in self._list(store, channel):
                found[schedule.channel, schedule.name] = schedule
        return sorted(found.values(), key=lambda each: (each.due, each.channel, each.name))

    async def pause(self, name: str, channel: str) -> Schedule:
        """Publish no more ticks until it is resumed."""
        return await self._change(name, channel, lambda old, _: replace(old, paused=True))

    async def resume(self, name: str, channel: str) -> Schedule:
        """Go on with the first tick after now: those of the pause are not missed."""

        def resumed(old: Schedule, now: datetime) -> Schedule:
            return old.renewed(paused=False, next=old.timing.next(now)) if old.paused else old

        return await self._change(name, channel, resumed)

    async def remove(self, name: str, channel: str) -> None:
        """Remove a schedule for good, also one that this version cannot read. Raises `NotFound`."""
        key = self._key(name, channel)
        for partition in self._stores(name, channel):
            store = (await self._partitions.ready(partition)).backend
            for _ in range(_TRIES):
                if (record := await store.records.get(key)) is None:
                    break
                if await store.records.remove(key, record.revision):
                    return
            else:
                raise _contended(name, channel)
        raise _missing(name, channel)

    async def run(self, name: str, channel: str, run: str | None = None) -> Receipt:
        """Publish what a tick would, now, also of a paused one. A repeat with the same id changes nothing."""
        store, found = await self._existing(name, channel)
        event = check_event(found.run_event(run or new_id()))
        partition = next(each for each in self._partitions.all if each.backend is store)
        target = partition.store_of(channel, found.content.key)
        [receipt] = await target.log.publish(channel, [event], priority=found.content.priority)
        return receipt

    async def _change(
        self, name: str, channel: str, change: Callable[[Schedule, datetime], Schedule]
    ) -> Schedule:
        store, old = await self._existing(name, channel)
        for _ in range(_TRIES):
            wanted = change(old, await store.now())
            if wanted == old:
                return old
            if (stored := await self._write(store, wanted)) is not None:
                return stored
            again = await self._get(store, name, channel)
            if again is None:
                raise _missing(name, channel)
            old = again
        raise _contended(name, channel)

    async def _write(self, store: Backend, schedule: Schedule) -> Schedule | None:
        """Write it under the revision that was read; None where it has changed since."""
        key, fields = self._key(schedule.name, schedule.channel), schedules.to_fields(schedule)
        revision = await store.records.put(key, fields, schedule.revision, schedule.due)
        return None if revision is None else replace(schedule, revision=revision)

    async def _find(self, name: str, channel: str) -> tuple[Backend, Schedule | None]:
        """Return a schedule and its store; where there is none, the store where it belongs."""
        stores = self._stores(name, channel)
        for partition in stores:
            store = (await self._partitions.ready(partition)).backend
            if (found := await self._get(store, name, channel)) is not None:
                return store, found
        return stores[0].backend, None

    async def _existing(self, name: str, channel: str) -> tuple[Backend, Schedule]:
        store, found = await self._find(name, channel)
        if found is None:
            raise _missing(name, channel)
        return store, found

    def _stores(self, name: str, channel: str) -> list[Partition]:
        """Return all partitions, the schedule's own first: it is elsewhere if it was made when there were
        other stores."""
        check_name(name, "schedule")
        check_name(channel)
        stores = self._partitions.all
        first = home(channel, Event(id=name, source="holdfast:schedule"), len(stores)) or 0
        return [stores[first], *stores[:first], *stores[first + 1 :]]

    async def _now(self, name: str, channel: str) -> datetime:
        [first, *_] = self._stores(name, channel)
        return await (await self._partitions.ready(first)).backend.now()

    async def _get(self, store: Backend, name: str, channel: str) -> Schedule | None:
        record = await store.records.get(self._key(name, channel))
        return None if record is None else schedules.from_record(self._namespace, record)

    async def _list(self, store: Backend, channel: str | None) -> AsyncIterator[Schedule]:
        """Page by page; one that moves to its next tick meanwhile may come twice."""
        prefix, place, limit = schedules.prefix(self._namespace, channel), None, _PAGE
        while True:
            asked = limit
            records = await store.records.due(prefix, asked, after=place, until=schedules.NEVER)
            for record in records:
                try:
                    schedule = schedules.from_record(self._namespace, record)
                except InvalidInput as error:
                    log.warning("%s", error)
                    limit += 1  # a page ends where the last readable one does
                    continue
                place = schedule.due, record.key
                yield schedule
            if len(records) < asked:
                return

    def _key(self, name: str, channel: str) -> str:
        return schedules.key(self._namespace, channel, name)


def _changed(old: Schedule, wanted: Schedule, now: datetime) -> Schedule:
    """The old one with another definition."""
    before, after = old.timing, wanted.timing
    timing, tick = after, wanted.next
    if (before.cron, before.every, before.tz) == (after.cron, after.every, after.tz):
        timing, tick = replace(after, anchor=before.anchor), old.next
    return old.renewed(
        timing=timing, content=wanted.content, missed=wanted.missed, max_missed=wanted.max_missed, next=tick
    )


def _missing(name: str, channel: str) -> NotFound:
    return NotFound(f"there is no schedule {name!r} of {channel!r}; 'holdfast schedules list' shows all")


def _contended(name: str, channel: str) -> HoldfastError:
    return Outdated(f"schedule {name!r} of {channel!r} is changed by many at once; try again")
