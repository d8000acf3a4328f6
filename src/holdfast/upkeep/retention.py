"""Retention: the log is trimmed by age and size, never past what somebody still needs."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

from holdfast import failpoints
from holdfast.contracts import Backend
from holdfast.model.upkeep import Hold, Lock, Size
from holdfast.upkeep.announcements import Alert, Held
from holdfast.upkeep.rules import Keep, Rules

STEP = 10_000
COUNTED = 1_000_000
_RELIEF = 0.9  # a full channel opens again somewhat below its bound, so that it does not flap


@dataclass(slots=True)
class Kept:
    """What retention did on one store."""

    trimmed: dict[str, int] = field(default_factory=dict)
    dropped: dict[str, int] = field(default_factory=dict)
    held: list[Held] = field(default_factory=list)
    full: list[str] = field(default_factory=list)
    alerts: list[Alert] = field(default_factory=list)


class Retention:
    """Applies the rules to every channel of one store."""

    def __init__(self, backend: Backend, rules: Rules) -> None:
        self._backend, self._rules = backend, rules

    async def run_once(self, lock: Lock) -> Kept:
        """Trim what is too old, then see to what is too large."""
        kept = Kept()
        now = await self._backend.now()
        for channel in await self._backend.channels():
            keep = self._rules.keep(channel)
            if keep is not None and keep.max_age is not None:
                await self._age(channel, now - keep.max_age, now, lock, kept)
            if keep is not None and keep.max_bytes is not None:
                await self._bound(channel, keep, keep.max_bytes, now, lock, kept)
            failpoints.hit("sweeper.between_channels")
        return kept

    async def dry_run(self) -> Kept:
        """What it would do at most: everything that is too old or too much, whoever still needs it."""
        kept = Kept()
        now = await self._backend.now()
        for channel in await self._backend.channels():
            keep = self._rules.keep(channel)
            if keep is not None and keep.max_age is not None:
                await self._would_trim(channel, now - keep.max_age, kept)
            if keep is not None and keep.max_bytes is not None:
                await self._would_bound(channel, keep, keep.max_bytes, kept)
        return kept

    async def _would_trim(self, channel: str, before: datetime, kept: Kept) -> None:
        last = await self._backend.seek(channel, before)
        if last is not None:
            everything = await self._backend.behind(channel, None, COUNTED)
            rest = await self._backend.behind(channel, last, COUNTED)
            kept.trimmed[channel] = everything.events - rest.events

    async def _would_bound(self, channel: str, keep: Keep, most: int, kept: Kept) -> None:
        size = await self._backend.size(channel)
        if size.bytes <= most:
            return
        if keep.on_full == "drop_oldest":
            kept.dropped[channel] = _surplus(size, most)
        else:
            kept.full.append(channel)

    async def _age(self, channel: str, before: datetime, now: datetime, lock: Lock, kept: Kept) -> None:
        removed, hold = await self._trim(channel, before, lock, kept)
        if removed:
            kept.trimmed[channel] = removed
        if hold is not None:
            await self._held(channel, hold, now, kept)

    async def _trim(self, channel: str, before: datetime, lock: Lock, kept: Kept) -> tuple[int, Hold | None]:
        removed = 0
        groups = self._rules.guards(channel)
        while True:
            step = await self._backend.trim(channel, before, STEP, lock, groups=groups)
            removed += step.removed
            failpoints.hit("sweeper.after_trim")
            if not step.more:
                return removed, step.hold

    async def _held(self, channel: str, hold: Hold, now: datetime, kept: Kept) -> None:
        lag = await self._backend.behind(channel, hold.after, COUNTED)
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
        self, channel: str, keep: Keep, most: int, now: datetime, lock: Lock, kept: Kept
    ) -> None:
        size = await self._backend.size(channel)
        if keep.on_full == "drop_oldest":
            await self._backend.set_full(channel, False)
            if size.bytes > most:
                await self._drop(channel, _surplus(size, most), now, lock, kept)
            return
        if size.bytes > most:
            await self._backend.set_full(channel, True)
            kept.full.append(channel)
            message = (
                f"{channel} holds about {size.bytes} bytes, its max_bytes is {most}: it refuses publishes"
            )
            kept.alerts.append(Alert(kind="full", message=message, channel=channel, count=size.events))
        elif size.bytes <= most * _RELIEF:
            await self._backend.set_full(channel, False)

    async def _drop(self, channel: str, surplus: int, now: datetime, lock: Lock, kept: Kept) -> None:
        """Remove the oldest events although stream consumers have not read them. Unfinished jobs stay."""
        behind = [cursor.name for cursor in await self._backend.cursors(channel)]
        removed = 0
        while removed < surplus:
            limit = min(STEP, surplus - removed)
            step = await self._backend.trim(channel, now, limit, lock, ignore=behind)
            removed += step.removed
            if not step.removed:
                break
        if removed:
            kept.dropped[channel] = removed
            message = (
                f"{channel} was over its max_bytes: {removed} of its oldest events were dropped, read or not"
            )
            kept.alerts.append(Alert(kind="dropped", message=message, channel=channel, count=removed))


def _surplus(size: Size, most: int) -> int:
    """How many events have to go for the others to fit, if all are about as large."""
    return max(1, round(size.events * (1 - most / size.bytes)))
