"""Channels and worker consumers."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime

from holdfast.backends.nats import stream, subjects
from holdfast.backends.nats.admission import admitted
from holdfast.backends.nats.batch import Message, state
from holdfast.backends.nats.entries import Entries
from holdfast.backends.nats.fates import Fates
from holdfast.backends.nats.floors import floor
from holdfast.backends.nats.ingest import Ingest
from holdfast.backends.nats.mirror import Cursor
from holdfast.backends.nats.registry import Member, Registry
from holdfast.backends.nats.store import Store
from holdfast.backends.nats.times import format_stamp, from_micros, to_micros
from holdfast.contracts import Backlog, ChannelStats, Consumer, ConsumerStats, Start
from holdfast.model.errors import NotFound
from holdfast.model.job import LIVE, State
from holdfast.model.policy import Policy
from holdfast.model.text import check_stored

_PAUSE = 0.05


class Consumers:
    """Creates, changes and describes channels and consumers."""

    def __init__(self, store: Store, entries: Entries, fates: Fates, ingest: Ingest) -> None:
        self._store, self._entries, self._fates, self._ingest = store, entries, fates, ingest

    async def subscribe(
        self, channel: str, consumer: str, policy: Policy, start: Start, revision: int | None
    ) -> Consumer:
        """Create a consumer or change its policy."""
        now = await self._store.fresh()

        def change(known: Registry) -> Registry:
            old = admitted(known, channel, consumer, policy, revision)
            if old is None:
                new = Member(known.next_ref, channel, consumer, policy.stored(), False, now)
                return known.with_member(new)
            return known if old.policy == policy else known.with_member(replace(old, stored=policy.stored()))

        change(self._store.registry)  # what is refused makes no channel either
        await self._store.ensure_channel(channel)

        async def begin(wanted: Registry) -> Sequence[Message]:
            member = wanted.by_name[channel, consumer]
            if member.ref in self._store.registry.members:
                return []
            known = await floor(self._store, channel)
            cursor = await self._start(channel, start, known.seq)
            return [state(subjects.cursor(member.ref), cursor.encode(), 0), known.again()]

        await self._store.change_registry(change, begin)
        return self._shown(self._store.registry.member(channel, consumer))

    async def _start(self, channel: str, start: Start, trimmed: int) -> Cursor:
        """Where a new consumer begins. What is appended from now on stands behind `last`."""
        last = int((await self._store.info())["state"]["last_seq"])
        if start == "latest":
            await self._resolved(channel)
            return Cursor(last)
        query: dict[str, object] = {"next_by_subj": channel, "batch": 1}
        since = to_micros(start) if isinstance(start, datetime) else None
        if since is None:
            query["seq"] = trimmed + 1
        else:
            query["start_time"] = format_stamp(since - self._store.registry.offset)
        found, _ = await self._store.link.read(query)
        if not found or found[0].seq > last:
            return Cursor(last)
        return Cursor(max(found[0].seq - 1, trimmed), last, since)

    async def _resolved(self, channel: str) -> None:
        """A publish of several batches that commits later must not stand before a consumer's start."""
        while await self._fates.under_way(channel) is not None:  # noqa: ASYNC110 - another process ends it
            await asyncio.sleep(_PAUSE)

    def _shown(self, member: Member) -> Consumer:
        past = self._store.mirror.cursors[member.ref].target is not None
        return self._store.registry.shown(member, past)

    async def consumer(self, channel: str, consumer: str) -> Consumer:
        """One consumer, or `NotFound`."""
        await self._store.fresh()
        return self._shown(self._store.registry.member(channel, consumer))

    async def consumers(self, channel: str | None) -> list[Consumer]:
        """All consumers of a channel, or of all."""
        await self._store.fresh()
        found = [self._shown(member) for member in self._store.registry.members.values()]
        chosen = [each for each in found if channel in (None, each.channel)]
        return sorted(chosen, key=lambda each: (each.channel, each.name))

    async def stats(self, channel: str, consumer: str) -> ConsumerStats:
        """Jobs by state, from counts that move with every transition."""
        await self._store.fresh()
        member = self._store.registry.member(channel, consumer)
        await self._ingest.level(member)
        counts, queues = self._store.mirror.counts(member.ref), self._store.mirror.queues
        states = {each: counts[each] for each in State if counts[each]}
        oldest, following = queues.oldest_ready(member.ref), queues.next_due(member.ref)
        return ConsumerStats(
            states,
            None if oldest is None else from_micros(oldest),
            None if following is None else from_micros(following),
        )

    async def backlogs(self) -> list[Backlog]:
        """Live jobs of every consumer, from the same counters; one that is removed meanwhile is left out."""
        found = []
        for each in await self.consumers(None):
            with suppress(NotFound):
                stats = await self.stats(each.channel, each.name)
                live = {state: stats.states.get(state, 0) for state in LIVE}
                found.append(Backlog(each.channel, each.name, live, stats.oldest_ready))
        return found

    async def set_paused(self, channel: str, consumer: str, paused: bool) -> None:
        """Stop or resume handing out jobs."""
        await self._store.fresh()

        def change(known: Registry) -> Registry:
            member = known.member(channel, consumer)
            return known if member.paused == paused else known.with_member(replace(member, paused=paused))

        await self._store.change_registry(change)

    async def set_display(self, channel: str, consumer: str | None, display: str) -> None:
        """Give a channel or a consumer a name for people."""
        check_stored("the name", display)
        await self._store.fresh()

        def change(known: Registry) -> Registry:
            if consumer is None:
                known.check_channel(channel)
                return known.with_display(channel, display)
            member = known.member(channel, consumer)
            return known if member.display == display else known.with_member(replace(member, display=display))

        await self._store.change_registry(change)

    async def set_full(self, channel: str, full: bool) -> None:
        """Refuse publishes to a channel, or take them again."""
        await self._store.look()
        self._store.registry.check_channel(channel)
        await self._store.change_registry(lambda known: known.with_full(channel, full))

    async def channels(self) -> list[str]:
        """All channels by name."""
        await self._store.fresh()
        return sorted(self._store.registry.channels)

    async def channel_stats(self, channel: str) -> ChannelStats:
        """One channel's log at a glance."""
        await self._store.fresh()
        registry = self._store.registry
        registry.check_channel(channel)
        info = await stream.info(self._store.link, subjects_filter=channel)
        count = int((info["state"].get("subjects") or {}).get(channel, 0))
        newest, _ = await self._store.link.read({"multi_last": [channel], "batch": 1})
        published = from_micros(self._entries.published(newest[0])) if newest else None
        names = [member.name for member in registry.by_channel.get(channel, ())]
        created, display = from_micros(registry.channels[channel]), registry.displays.get(channel, "")
        return ChannelStats(channel, created, count, published, names, display)
