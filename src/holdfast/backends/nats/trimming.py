"""Trimming: the oldest events go, as far as nobody needs them any more.

A purge cannot be part of a batch. So the floor is written first, in one batch with the fence of the sweeper's
lock and under the revision that the judgement rests on; then what is below it is purged. A step that died in
between is finished by the next one.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from holdfast import failpoints
from holdfast.backends.nats import stream, subjects
from holdfast.backends.nats.batch import Stale
from holdfast.backends.nats.bulk import Bulk
from holdfast.backends.nats.entries import Entries
from holdfast.backends.nats.fates import Fates
from holdfast.backends.nats.floors import Floor, floor
from holdfast.backends.nats.forgetting import forgotten
from holdfast.backends.nats.guards import Guard, Guards
from holdfast.backends.nats.locks import Locks
from holdfast.backends.nats.store import TRIES, Store
from holdfast.backends.nats.stretches import stretch
from holdfast.backends.nats.times import to_micros
from holdfast.model.decide import Ref
from holdfast.model.errors import Unavailable
from holdfast.model.upkeep import Hold, Lock, Trim


class _Step(NamedTuple):
    """How far a step goes, and could go; how many events it removes, and whether the limit cut it short."""

    seq: int
    free: int
    removed: int
    more: bool


class Trimming:
    """Judges and removes, one bounded step at a time."""

    def __init__(
        self, store: Store, entries: Entries, fates: Fates, bulk: Bulk, guards: Guards, locks: Locks
    ) -> None:
        self._store, self._entries, self._fates = store, entries, fates
        self._bulk, self._guards, self._locks = bulk, guards, locks

    async def trim(
        self,
        channel: str,
        before: datetime,
        limit: int,
        lock: Lock | None,
        ignore: Sequence[str],
        groups: Sequence[str],
        ended: Sequence[Ref],
    ) -> Trim:
        """One step; whoever begins to need the log meanwhile makes it start over."""
        if lock is None:
            known = await floor(self._store, channel)
            step, hold = await self._judged(known, before, None, ignore, groups, ended)
            return Trim(step.removed, more=False, hold=hold)
        for _ in range(TRIES):
            known = await floor(self._store, channel)
            fence = await self._locks.fence(lock)
            await self._finish(known)
            step, hold = await self._judged(known, before, limit, ignore, groups, ())
            if step.removed:
                try:
                    await self._store.commit([known.moved(step.seq), fence])
                except Stale:
                    continue
                failpoints.hit("trim.after_record")
                await self._purge(channel, step.seq)
            return Trim(step.removed, step.more, hold)
        raise Unavailable(f"channel {channel!r} changed too often to trim it; try again")

    async def _judged(
        self,
        known: Floor,
        before: datetime,
        limit: int | None,
        ignore: Sequence[str],
        groups: Sequence[str],
        ended: Sequence[Ref],
    ) -> tuple[_Step, Hold | None]:
        """How far a step may go, and who holds back what is behind it. Nothing is written."""
        guards = await self._guards.of(known, ignore, groups, ended)
        old = await self._old(known.channel, before)
        step = await self._step(known, min([old, *(guard.after for guard in guards)]), limit)
        return step, self._hold(step, old, guards)

    async def _old(self, channel: str, before: datetime) -> int:
        """The last event that is old enough to go."""
        horizon = await self._fates.horizon(channel)
        found = await self._entries.last(
            channel, min(horizon, await self._bulk.first_at(to_micros(before)) - 1)
        )
        return 0 if found is None else found.seq

    async def _step(self, known: Floor, free: int, limit: int | None) -> _Step:
        """How far this step goes, at most to `free`; without a limit, all of them together."""
        found = await self._entries.last(known.channel, free)
        last = known.seq if found is None else max(found.seq, known.seq)
        if last == known.seq or (limit is not None and limit < 1):
            return _Step(known.seq, last, 0, last > known.seq)
        old = await stretch(self._entries, self._fates, known.channel, known.seq, last)
        if limit is None:
            return _Step(last, last, old.count, more=False)
        end = await old.find(min(old.count, limit))
        return _Step(end.seq, last, end.number, old.count > limit)

    async def _finish(self, known: Floor) -> None:
        """Remove what a step that died has left below the floor."""
        for subject in (known.channel, subjects.parts(known.channel)):
            first, _ = await self._entries.first(subject, 0)
            if first is not None and first.seq <= known.seq:
                await self._purge(known.channel, known.seq)

    async def _purge(self, channel: str, seq: int) -> None:
        """Events, then their parts, then what was only there for their sake."""
        link, keys = self._store.link, await forgotten(self._store)
        await stream.purge(link, channel, seq)
        failpoints.hit("trim.mid_purge")
        await stream.purge(link, subjects.parts(channel), seq)
        await stream.purge(link, subjects.aborted("*", channel), seq)
        # The keys of a publish of several batches need its fate as well.
        await stream.purge(link, subjects.fate("*", channel), min(seq, keys.seq))

    def _hold(self, step: _Step, old: int, guards: list[Guard]) -> Hold | None:
        """Who keeps an event that is old enough to go."""
        if not guards or guards[0].after >= old:
            return None
        after = min(guards[0].after, step.free)  # the last event that it no longer needs, wherever it stands
        return Hold(guards[0].consumer, self._store.registry.position(after) if after else None)
