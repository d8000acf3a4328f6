"""Retention: the log is trimmed by age and size, never past what somebody still needs; and the stream
consumers that it waits for."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple

from holdfast import failpoints
from holdfast.contracts import Backend
from holdfast.model.decide import Ref
from holdfast.model.errors import NotFound
from holdfast.model.upkeep import Hold, Lock, Size
from holdfast.upkeep.announcements import Alert, Held
from holdfast.upkeep.rules import Keep, Rules

STEP = 10_000
COUNTED = 1_000_000
_AT_ONCE = 8  # channels: each costs a few requests, one after the other
_RELIEF = 0.9  # a full channel opens again somewhat below its bound, so that it does not flap


@dataclass(slots=True)
class Kept:
    """What retention did on one store."""

    trimmed: dict[str, int] = field(default_factory=dict)
    dropped: dict[str, int] = field(default_factory=dict)
    held: list[Held] = field(default_factory=list)
    full: list[str] = field(default_factory=list)
    alerts: list[Alert] = field(default_factory=list)

    def add(self, other: Kept) -> None:
        """Add what was done on other channels."""
        self.trimmed |= other.trimmed
        self.dropped |= other.dropped
        self.held += other.held
        self.full += other.full
        self.alerts += other.alerts


class RetentionSweep:
    """Applies the rules to every channel of one store."""

    def __init__(self, backend: Backend, rules: Rules) -> None:
        self._backend, self._rules = backend, rules

    async def run_once(self, lock: Lock | None, ended: Sequence[Ref] = ()) -> Kept:
        """Trim what is too old, then see to what is too large.

        Without a lock it changes nothing, and returns what it would do if the jobs in `ended` were given up.
        """
        kept, now = Kept(), await self._backend.now()
        names = await self._backend.channels.names()
        for start in range(0, len(names), _AT_ONCE):
            some = names[start : start + _AT_ONCE]
            done = await asyncio.gather(
                *(self.sweep_channel(name, now, lock, ended) for name in some), return_exceptions=True
            )
            for each in done:
                if isinstance(each, BaseException):
                    raise each
                kept.add(each)
        return kept

    async def sweep_channel(
        self, channel: str, now: datetime, lock: Lock | None, ended: Sequence[Ref] = ()
    ) -> Kept:
        """Do the same on one channel."""
        kept, keep = Kept(), self._rules.keep(channel)
        if keep is not None and keep.max_age is not None:
            await self._age(channel, now - keep.max_age, now, lock, ended, kept)
        if keep is not None and keep.max_bytes is not None:
            await self._bound(channel, keep, keep.max_bytes, now, lock, ended, kept)
        failpoints.hit("sweeper.between_channels")
        return kept

    async def _age(
        self,
        channel: str,
        before: datetime,
        now: datetime,
        lock: Lock | None,
        ended: Sequence[Ref],
        kept: Kept,
    ) -> None:
        removed, hold = await self._trim(channel, before, lock, ended)
        if removed:
            kept.trimmed[channel] = removed
        if hold is not None:
            await self._held(channel, hold, now, kept)

    async def _trim(
        self, channel: str, before: datetime, lock: Lock | None, ended: Sequence[Ref]
    ) -> tuple[int, Hold | None]:
        removed = 0
        groups = self._rules.guards(channel)
        if lock is None:
            would = await self._backend.retention.trim(
                channel, before, COUNTED, None, groups=groups, ended=ended
            )
            return would.removed, would.hold
        while True:
            step = await self._backend.retention.trim(channel, before, STEP, lock, groups=groups)
            removed += step.removed
            failpoints.hit("sweeper.after_trim")
            if not step.more:
                return removed, step.hold

    async def _held(self, channel: str, hold: Hold, now: datetime, kept: Kept) -> None:
        lag = await self._backend.log.behind(channel, hold.after, COUNTED)
        age = 0.0 if lag.oldest is None else (now - lag.oldest).total_seconds()
        kept.held.append(Held(channel=channel, consumer=hold.consumer, events=lag.events, age_seconds=age))
        kept.alerts.append(
            Alert(
                kind="held_back",
                message=f"{channel} holds events past their age because {hold.consumer} still needs them; "
                "start it again, or remove it if it is gone for good",
                channel=channel,
                consumer=hold.consumer,
                count=lag.events,
                age_seconds=age,
            )
        )

    async def _bound(
        self,
        channel: str,
        keep: Keep,
        most: int,
        now: datetime,
        lock: Lock | None,
        ended: Sequence[Ref],
        kept: Kept,
    ) -> None:
        size = await self._backend.retention.size(channel)
        if lock is None:  # what would be trimmed is still in it
            size = _less(size, kept.trimmed.get(channel, 0))
        if keep.on_full == "drop_oldest":
            if lock is not None:
                await self._backend.retention.set_full(channel, False)
            if size.bytes > most:
                await self._drop(channel, _surplus(size, most), now, lock, ended, kept)
            return
        if size.bytes > most:
            if lock is not None:
                await self._backend.retention.set_full(channel, True)
            kept.full.append(channel)
            message = (
                f"{channel} holds about {size.bytes} bytes, its max_bytes is {most}: it refuses publishes"
            )
            kept.alerts.append(Alert(kind="full", message=message, channel=channel, count=size.events))
        elif size.bytes <= most * _RELIEF and lock is not None:
            await self._backend.retention.set_full(channel, False)

    async def _drop(
        self,
        channel: str,
        surplus: int,
        now: datetime,
        lock: Lock | None,
        ended: Sequence[Ref],
        kept: Kept,
    ) -> None:
        """Remove the oldest events although stream consumers have not read them. Unfinished jobs stay."""
        behind = [cursor.name for cursor in await self._backend.cursors.all(channel)]
        if lock is None:
            would = await self._backend.retention.trim(
                channel, now, COUNTED, None, ignore=behind, ended=ended
            )
            removed = min(would.removed - kept.trimmed.get(channel, 0), surplus)
        else:
            removed = await self._dropped(channel, surplus, now, lock, behind)
        if removed:
            kept.dropped[channel] = removed
            message = (
                f"{channel} was over its max_bytes: {removed} of its oldest events were dropped, read or not"
            )
            kept.alerts.append(Alert(kind="dropped", message=message, channel=channel, count=removed))

    async def _dropped(
        self, channel: str, surplus: int, now: datetime, lock: Lock, behind: Sequence[str]
    ) -> int:
        removed = 0
        while removed < surplus:
            limit = min(STEP, surplus - removed)
            step = await self._backend.retention.trim(channel, now, limit, lock, ignore=behind)
            removed += step.removed
            if not step.removed and not step.more:  # a step may pass over what dead letters keep
                break
        return removed


def _less(size: Size, events: int) -> Size:
    """The size without so many events, if all are about as large."""
    left = max(0, size.events - events)
    return Size(left, size.bytes * left // size.events if size.events else 0)


def _surplus(size: Size, most: int) -> int:
    """How many events have to go for the others to fit, if all are about as large."""
    return max(1, round(size.events * (1 - most / size.bytes)))


class Stream(NamedTuple):
    """A stream consumer on one store."""

    channel: str
    consumer: str
    partition: int
    position: str | None
    """Its sink is durable up to here; None: nothing yet."""
    moved_at: datetime
    behind: int
    """Events after it, counted up to 1,000,000: retention keeps them for it."""
    oldest: datetime | None
    """When the first of them was published."""


async def streams(
    stores: Sequence[Backend], channel: str | None = None, consumer: str | None = None
) -> list[Stream]:
    """Those of one channel or of all; `NotFound` for a channel, or a consumer of it, that is not there."""
    if channel is not None and not any([channel in await store.channels.names() for store in stores]):
        raise NotFound(f"there is no channel {channel!r}; 'holdfast channels list' shows all")
    found = []
    for partition, store in enumerate(stores):
        for cursor in await store.cursors.all(channel):
            if consumer in (None, cursor.name):
                lag = await store.log.behind(cursor.channel, cursor.position, COUNTED)
                where = (cursor.channel, cursor.name, partition, cursor.position, cursor.moved_at)
                found.append(Stream(*where, lag.events, lag.oldest))
    if consumer is not None and not found:
        raise NotFound(f"channel {channel!r} has no stream consumer {consumer!r}")
    return sorted(found)


async def remove_stream(stores: Sequence[Backend], channel: str, consumer: str) -> None:
    """End a stream consumer on every store: retention waits for it no longer."""
    for store in stores:
        if channel in await store.channels.names():
            await store.cursors.detach(channel, consumer)


def warning(found: Sequence[Stream]) -> str:
    """What the end of a stream consumer means for what it has not read."""
    behind = sum(each.behind for each in found)
    return (
        f"{found[0].consumer} of {found[0].channel} is {behind:,} events behind; retention keeps them for it "
        "and may trim them unread once it is removed"
    )
