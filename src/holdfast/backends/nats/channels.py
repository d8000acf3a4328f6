"""Channels and worker consumers."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from holdfast import failpoints
from holdfast.backends.nats.state import lease_records
from holdfast.backends.nats.state.backlogs import Backlogs
from holdfast.backends.nats.state.counts import live
from holdfast.backends.nats.state.dead_index import death_times
from holdfast.backends.nats.state.entries import Entries
from holdfast.backends.nats.state.frontiers import Frontier
from holdfast.backends.nats.state.mirror import TOMBSTONE_SECONDS
from holdfast.backends.nats.state.publish_outcome import PublishOutcomes
from holdfast.backends.nats.state.registry import Member, Registry
from holdfast.backends.nats.state.store import NatsStore
from holdfast.backends.nats.wire import stream, subjects
from holdfast.backends.nats.wire.batches import BatchMessage, state
from holdfast.backends.nats.wire.codec import from_micros, to_micros
from holdfast.backends.nats.wire.parser import StoredMessage
from holdfast.contracts import Backlog, ChannelStats, Consumer, ConsumerStats, JobTimes, Start
from holdfast.model.deadletters import Removal
from holdfast.model.errors import InvalidPolicy, NotFound, Outdated
from holdfast.model.names import check_stored
from holdfast.model.policy import Policy
from holdfast.model.states import LIVE, State

_PAUSE = 0.05
_PAGE = 1000


class Channels:
    """The registry's channels and consumers, with the counts that the mirror has of them."""

    def __init__(
        self, store: NatsStore, entries: Entries, outcomes: PublishOutcomes, backlogs: Backlogs
    ) -> None:
        self._store, self._entries, self._outcomes, self._backlogs = store, entries, outcomes, backlogs

    async def create(self, channel: str) -> None:
        await self._store.recognise()
        await self._store.ensure_channel(channel)

    async def names(self) -> list[str]:
        await self._store.fresh()
        return sorted(self._store.registry.channels)

    async def stats(self, channel: str) -> ChannelStats:
        await self._store.fresh()
        registry = self._store.registry
        registry.check_channel(channel)
        info = await stream.info(self._store.connection, subjects_filter=channel)
        count = int((info["state"].get("subjects") or {}).get(channel, 0))
        newest, _ = await self._store.connection.read({"multi_last": [channel], "batch": 1})
        published = from_micros(self._entries.published(newest[0])) if newest else None
        names = [member.name for member in registry.by_channel.get(channel, ())]
        created, display = from_micros(registry.channels[channel]), registry.displays.get(channel, "")
        return ChannelStats(channel, created, count, published, names, display)

    async def subscribe(
        self,
        channel: str,
        consumer: str,
        policy: Policy,
        start: Start = "latest",
        *,
        revision: int | None = None,
    ) -> Consumer:
        now = await self._store.clock()

        def change(known: Registry) -> Registry:
            old = _checked(known, channel, consumer, policy, revision)
            if old is None:
                new = Member(known.next_ref, channel, consumer, policy.stored(), False, now)
                return known.with_member(new)
            return known if old.policy == policy else known.with_member(replace(old, stored=policy.stored()))

        change(self._store.registry)  # what is refused makes no channel either
        await self._store.ensure_channel(channel)
        is_new = (channel, consumer) not in self._store.registry.by_name
        latest = await self._latest(channel) if is_new and start == "latest" else None

        async def begin(wanted: Registry) -> Sequence[BatchMessage]:
            member = wanted.by_name[channel, consumer]
            if member.ref in self._store.registry.members:
                return []
            mark = await self._store.trim_mark(channel)
            at = await self._start(channel, start, mark.seq) if latest is None else max(latest, mark.seq)
            return [Frontier(at, at).message(member.ref), mark.again()]

        await self._store.change_registry(change, begin)
        return self._shown(self._store.registry.member(channel, consumer))

    async def _start(self, channel: str, start: Start, trimmed: int) -> int:
        """Return the sequence that a new consumer begins behind."""
        if start == "latest":
            return await self._latest(channel)
        if isinstance(start, datetime):
            last = int((await self._store.info())["state"]["last_seq"])
            return max(min(await self._entries.first_at(to_micros(start)) - 1, last), trimmed)
        return trimmed

    async def _latest(self, channel: str) -> int:
        """Return the last sequence, once a publish of several batches can no longer commit before it."""
        last = int((await self._store.info())["state"]["last_seq"])
        while await self._outcomes.under_way(channel) is not None:  # noqa: ASYNC110 - another process ends it
            await asyncio.sleep(_PAUSE)
        return last

    def _shown(self, member: Member) -> Consumer:
        return self._store.registry.shown(member)

    async def consumers(self, channel: str | None = None) -> list[Consumer]:
        await self._store.look()
        return [self._shown(member) for member in self._store.registry.chosen(channel, None)]

    async def consumer(self, channel: str, consumer: str) -> Consumer:
        await self._store.look()
        return self._shown(self._store.registry.member(channel, consumer))

    async def consumer_stats(self, channel: str, consumer: str) -> ConsumerStats:
        member, _ = await self._store.consumer(channel, consumer)
        found = (await self._backlogs.of([member])).get(member.ref)
        if found is None:
            raise NotFound(f"consumer {consumer!r} of channel {channel!r} was removed")
        states = {each: found.states[each] for each in State if found.states[each]}
        return ConsumerStats(states, _time(found.oldest_ready), _time(found.next_due))

    async def backlogs(self, limit: int) -> list[Backlog]:
        await self._store.fresh()
        members = self._store.registry.chosen(None, None)
        counted = await self._backlogs.of(members)
        return [
            Backlog(
                each.channel,
                each.name,
                {state: counted[each.ref].states[state] for state in LIVE},
                _time(counted[each.ref].oldest_ready),
            )
            for each in members
            if each.ref in counted
        ]

    async def job_times(self) -> list[JobTimes]:
        await self._store.fresh()
        members = self._store.registry.chosen(None, None)
        counted = await self._backlogs.of(members)
        found = []
        for each in members:
            counts = self._store.mirror.counts(each.ref)
            some = any(number > 0 for name, number in counts.items() if name.startswith("dead:"))
            dead = await death_times(self._store, each.ref) if some else None
            ready = counted[each.ref].ready_times if each.ref in counted else None
            found.append(JobTimes(each.channel, each.name, _times(ready), _times(dead)))
        return found

    async def set_paused(self, channel: str, consumer: str, paused: bool) -> None:
        await self._store.fresh()

        def change(known: Registry) -> Registry:
            member = known.member(channel, consumer)
            return known if member.paused == paused else known.with_member(replace(member, paused=paused))

        await self._store.change_registry(change)

    async def set_display(self, channel: str, consumer: str | None, display: str) -> None:
        check_stored("the name", display)
        await self._store.fresh()

        def change(known: Registry) -> Registry:
            if consumer is None:
                known.check_channel(channel)
                return known.with_display(channel, display)
            member = known.member(channel, consumer)
            return known if member.display == display else known.with_member(replace(member, display=display))

        await self._store.change_registry(change)

    # The removal of a consumer takes it out of the registry first, then removes what is left of it. With its
    # frontier gone nobody takes anything up for it, and without its jobs nobody moves any: a step of another
    # process that had begun before is refused, or is found by the next pass.

    async def remove_consumer(self, channel: str, consumer: str, limit: int) -> Removal:
        now = await self._store.fresh()
        ref, waiting = await self._begin_removal(channel, consumer, now)
        failpoints.hit("remove.after_mark")
        taken: Counter[str] = Counter()
        done = False
        while not done and (left := limit - taken.total()) > 0:
            step = await self._remove_some(ref, left)
            taken += step
            done = not step.total()
        if done:
            await self._end_removal(ref)
        return Removal(taken["jobs"] + waiting, taken["dead"], taken["history"], done)

    async def _begin_removal(self, channel: str, consumer: str, now: int) -> tuple[str, int]:
        """From here on the consumer is in no list. Whoever moves its frontier finds that it is gone.

        Returns its number, and how many of its jobs had no record of their own.
        """
        waiting = 0

        def change(known: Registry) -> Registry:
            begun = known.being_removed(channel, consumer) is not None
            return known if begun else known.without(known.member(channel, consumer), now)

        async def also(wanted: Registry) -> Sequence[BatchMessage]:
            member = wanted.being_removed(channel, consumer)
            if member is None or member.ref not in self._store.registry.members:
                return []
            nonlocal waiting
            await self._store.mirror.sync(member.ref)
            frontier = self._store.mirror.frontier(member.ref)
            found = await self._backlogs.of([member])
            live_ones = live(found[member.ref].states) if member.ref in found else 0
            waiting = live_ones - live(self._store.mirror.counts(member.ref))
            return [state(subjects.frontier(member.ref), b"", frontier.revision, TOMBSTONE_SECONDS)]

        await self._store.change_registry(change, also)
        member = self._store.registry.being_removed(channel, consumer)
        return "" if member is None else member.ref, waiting

    async def _remove_some(self, ref: str, limit: int) -> Counter[str]:
        """Remove jobs first: without one nobody dies or ends any more. Returns how many of each kind."""
        dead = subjects.dead(ref, "*"), subjects.index(ref), subjects.copies(ref), subjects.patches(ref)
        taken = Counter(jobs=await self._purge([subjects.job(ref, "*")], limit))
        taken["dead"] = await self._purge(dead, limit - taken.total())
        taken["history"] = await self._purge([subjects.ended(ref, "*")], limit - taken.total())
        taken["history"] += await self._purge([subjects.leases(ref)], limit - taken.total())
        return taken

    async def _purge(self, wanted: Sequence[str], limit: int) -> int:
        """Purge the oldest that the first filter matches, and of the others what stands before them."""
        count, connection = 0, self._store.connection
        while count < limit:
            query = {"seq": 1, "next_by_subj": wanted[0], "batch": min(limit - count, _PAGE)}
            found, _ = await connection.read(query)
            if not found:
                break
            for subject in reversed(wanted):  # what is counted goes last: a step that dies is taken again
                await stream.purge(connection, subject, found[-1].seq)
            count += sum(map(_jobs_of, found))
            failpoints.hit("remove.after_step")
        return count

    async def _end_removal(self, ref: str) -> None:
        """Remove what nobody counts: copies of live jobs' events, counts, marks of what has gone."""
        last = int((await self._store.info())["state"]["last_seq"])
        for subject in (
            subjects.index(ref),
            subjects.left(ref),
            subjects.copies(ref),
            subjects.patches(ref),
            subjects.count(ref, "*"),
            subjects.cluster(ref, "*", "*"),
            subjects.key_order(ref),
            subjects.key_order_check(ref),
            subjects.leases(ref),
            subjects.frontier(ref),
        ):
            await stream.purge(self._store.connection, subject, last)
        failpoints.hit("remove.before_end")
        await self._store.change_registry(lambda known: known.after(ref))


def _jobs_of(message: StoredMessage) -> int:
    """Return how many jobs a message tells of; the record of a lease, of those that have ended."""
    if not message.subject.startswith(subjects.LEASES):
        return int(bool(message.data))
    return len(lease_records.decode(message.data, message.seq)[1].ends)


def _checked(known: Registry, channel: str, name: str, policy: Policy, revision: int | None) -> Member | None:
    """Return the consumer as it is, None where it is to be made. Raises what forbids the change."""
    old = known.by_name.get((channel, name))
    _check_target(known, channel, policy.dead_letter)
    if old is not None and old.policy.ordered != policy.ordered:
        raise InvalidPolicy(
            f"consumer {name!r} of channel {channel!r} was created with ordered={old.policy.ordered}; "
            "create another consumer"
        )
    if known.being_removed(channel, name) is not None:
        raise Outdated(f"consumer {name!r} of channel {channel!r} is being removed; wait until that is done")
    there = 0 if old is None else old.revision
    if revision not in (None, there):
        raise Outdated(
            f"consumer {name!r} of channel {channel!r} has revision {there}, not {revision}; "
            "read it again and decide anew"
        )
    return old


def _check_target(known: Registry, channel: str, target: str | None) -> None:
    """Refuse a dead-letter channel that is missing or leads back."""
    if target is None:
        return
    if target != channel and target not in known.channels:
        raise InvalidPolicy(f"dead-letter channel {target!r} does not exist; create it first")
    seen, todo = set[str](), [target]
    while todo:
        each = todo.pop()
        if each not in seen:
            seen.add(each)
            todo += [m.policy.dead_letter for m in known.by_channel.get(each, ()) if m.policy.dead_letter]
    if channel in seen:
        raise InvalidPolicy(
            f"dead-letter channel {target!r} leads back to {channel!r}; choose one outside the cycle"
        )


def _time(micros: int | None) -> datetime | None:
    return None if micros is None else from_micros(micros)


def _times(span: tuple[int, int] | None) -> tuple[datetime, datetime] | None:
    return None if span is None else (from_micros(span[0]), from_micros(span[1]))
