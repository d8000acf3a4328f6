"""Entries: the log as it may be read, without what a publish of several batches has not committed."""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from holdfast.backends.nats.state.job_records import StoredJob
from holdfast.backends.nats.state.publish_outcome import PublishOutcomes
from holdfast.backends.nats.state.store import NatsStore
from holdfast.backends.nats.wire import codec, subjects
from holdfast.backends.nats.wire.codec import format_stamp, parse_stamp
from holdfast.backends.nats.wire.parser import Raw, StoredMessage, stored, subject_and_sequence
from holdfast.model.errors import DataLost
from holdfast.model.event import Event

PAGE = 1000
_END = 1 << 62
_BACK = 256
_AHEAD_BYTES = 4_000_000
_PUBLISH = f"{subjects.PUBLISH}: ".encode()
_WIDER = 4  # messages that are read for each that is wanted
_PROBES_AT_ONCE, _PROBES = 16, 100
_KEPT, _SMALL = 2_000, 4_000  # messages that are remembered, and bytes that one of them may have


class Entries:
    """Reads messages of channels, and events whole."""

    def __init__(self, store: NatsStore, outcomes: PublishOutcomes) -> None:
        self._store, self._outcomes = store, outcomes
        self._recent: dict[int, StoredMessage] = {}
        self._generation = 0

    async def page(self, channel: str, after: int, limit: int) -> tuple[list[StoredMessage], int]:
        """Return up to `limit` entries after a sequence, and the sequence up to which there are no others.

        It ends before a publish that is under way, since that may still commit below what comes later.
        """
        found, reached, _ = await self.raw_page(channel, after, limit, limit)
        messages = [stored(raw) for _, raw in found]
        self.keep(messages)
        return messages, reached

    async def raw_page(
        self, channel: str, after: int, limit: int, ahead: int
    ) -> tuple[list[tuple[int, Raw]], int, bool]:
        """Return the same with their sequences, unread, and up to `ahead` of them where so many follow; and
        whether that is all there is for now."""
        found: list[tuple[int, Raw]] = []
        while len(found) < limit:
            batch, seen = min(max(limit, ahead) - len(found), PAGE), self._store.connection.seen
            query: dict[str, object] = {"seq": after + 1, "next_by_subj": channel, "batch": batch}
            if ahead > limit:
                query["max_bytes"] = _AHEAD_BYTES
            messages, pending = await self._store.connection.read_raw(query, subjects.STREAM)
            outcomes = await self._raw_outcomes(channel, messages)
            for raw in messages:
                seq = subject_and_sequence(raw[0])[1]
                outcome = outcomes.get(seq, True)
                if outcome is None:
                    return found, after, True
                after = seq
                if outcome:
                    found.append((seq, raw))
            if not pending:
                return found, max(after, seen), True
        return found, after, False

    async def _raw_outcomes(self, channel: str, messages: Sequence[Raw]) -> Mapping[int, bool | None]:
        """Return by sequence what became of the publishes of several batches that have some of these, without
        those that were committed."""
        named: dict[bytes, list[Raw]] = {}
        for raw in messages:
            if _PUBLISH in raw[0]:
                at = raw[0].index(_PUBLISH)
                named.setdefault(raw[0][at : raw[0].index(b"\r", at)], []).append(raw)
        if not named:
            return {}
        firsts = [stored(some[0]) for some in named.values()]
        outcomes = await self.outcomes(channel, firsts)
        if all(outcomes.get(each.headers.get(subjects.PUBLISH), True) for each in firsts):
            return {}  # also what only says that it belongs to one of them
        each_one = [stored(raw) for some in named.values() for raw in some]
        return {each.seq: outcomes.get(each.headers.get(subjects.PUBLISH), True) for each in each_one}

    def keep(self, messages: Iterable[StoredMessage]) -> None:
        """Remember what was read of late: whoever makes jobs mostly hands them out, too, and to several
        consumers. A message never changes, but another server may have another one in its place; the parts
        of a large event may be gone."""
        if self._generation != self._store.connection.generation:
            self._generation = self._store.connection.generation
            self._recent.clear()
        self._recent |= {each.seq: each for each in messages if 0 < len(each.data) <= _SMALL}
        for seq in list(self._recent)[: max(len(self._recent) - _KEPT, 0)]:
            del self._recent[seq]

    async def outcomes(
        self, channel: str, messages: Sequence[StoredMessage]
    ) -> Mapping[str | None, bool | None]:
        """Return the outcomes of all publishes of several batches that have messages among these."""
        publishes = {
            publish: message.stamp
            for message in messages
            if (publish := message.headers.get(subjects.PUBLISH)) is not None
        }
        return dict((await self._outcomes.of(channel, publishes)).items())

    async def first(self, channel: str, after: int) -> tuple[StoredMessage | None, int]:
        """Return the first message after a sequence, and how many there are, with those that were aborted."""
        query = {"seq": after + 1, "next_by_subj": channel, "batch": 1}
        found, pending = await self._store.connection.read(query)
        return (found[0], pending + 1) if found else (None, 0)

    async def count(self, channel: str, after: int) -> int:
        """Return how many messages follow a sequence, with those that were aborted."""
        return (await self.first(channel, after))[1]

    async def first_at(self, time: int) -> int:
        """Return the first sequence that was stored at a time, in the store's clock, or later."""
        following = _END
        for start, offset in reversed(self._store.registry.offsets):
            query = {"start_time": format_stamp(time - offset), "next_by_subj": ">", "batch": 1}
            found, _ = await self._store.connection.read(query)
            first = min(found[0].seq if found else _END, following)
            if first > start:
                return first
            following = start  # it may have been before the clock was last moved
        return following

    async def last(self, channel: str, until: int) -> StoredMessage | None:
        """Return the newest entry up to a sequence at which nothing is under way any more."""
        back = _BACK
        while until > 0:
            query = {"multi_last": [channel], "up_to_seq": until, "batch": 1}
            newest, _ = await self._store.connection.read(query)
            if not newest or await self._committed(channel, newest):
                return newest[0] if newest else None
            # It was aborted: look at ever larger pieces of what stands before it.
            until = max(newest[0].seq - back, 0)
            found, _ = await self.page(channel, until, back)
            earlier = [each for each in found if each.seq < newest[0].seq]
            if earlier:
                return earlier[-1]
            back *= 4
        return None

    async def _committed(self, channel: str, messages: Sequence[StoredMessage]) -> list[StoredMessage]:
        outcomes = await self.outcomes(channel, messages)
        return [each for each in messages if outcomes.get(each.headers.get(subjects.PUBLISH), True)]

    async def at(self, channel: str, seqs: Sequence[int]) -> dict[int, StoredMessage]:
        """Return the messages of some sequences, as far as they still are in the log."""
        self.keep(())
        found = {seq: self._recent[seq] for seq in seqs if seq in self._recent}
        wanted = set(seqs) - found.keys()
        if wanted:
            # Jobs mostly leave in log order, with gaps where others took some: one page often has them all,
            # and a request for each of the rest costs the server more than what lies between them.
            messages = list[StoredMessage]()
            if len(wanted) > 1:
                batch = min(_WIDER * len(wanted), PAGE)
                page = {"seq": min(wanted), "next_by_subj": channel, "batch": batch}
                messages = (await self._store.connection.read(page))[0]
            missing = wanted - {message.seq for message in messages}
            rest = await asyncio.gather(*(self._store.connection.at(channel, seq) for seq in missing))
            messages += filter(None, rest)
            self.keep(messages)
            found |= {message.seq: message for message in messages if message.seq in wanted}
        return found

    async def of_jobs(self, channel: str, jobs: Sequence[StoredJob]) -> dict[int, StoredMessage]:
        """Return the messages of some jobs: with other data, from the log, or a dead letter's copy."""
        found = await self.at(channel, [job.seq for job in jobs if not job.patch])
        places = {job.patch or job.copy: job.seq for job in jobs if job.seq not in found}
        places.pop("", None)
        for each in await self._store.connection.exact(list(places)):
            if subjects.CE_ID in each.headers:
                found[places[each.subject]] = each
        return found

    async def of_job(self, channel: str, job: StoredJob) -> Event | None:
        """Return one job's event, as its consumer gets it; None where it is gone."""
        found = await self.of_jobs(channel, [job])
        return (await self.events(found.values()))[0] if found else None

    async def events(self, messages: Iterable[StoredMessage]) -> list[Event | None]:
        """Return messages as events, large ones with their parts; None where some of these are gone."""
        return [await self._event(message) for message in messages]

    async def intact(self, channel: str, messages: Sequence[StoredMessage]) -> list[Event]:
        """Return the same. Raises `DataLost` where parts are gone."""
        found = [event for event in await self.events(messages) if event is not None]
        if len(found) < len(messages):
            raise DataLost(f"parts of a large event of channel {channel!r} were removed before it was read")
        return found

    async def _event(self, message: StoredMessage) -> Event | None:
        count = codec.part_count(message)
        whole = await self._whole(message, count) if count else None
        if count and whole is None:
            return None
        return codec.decode(message, self.published, whole)

    async def _whole(self, message: StoredMessage, count: int) -> bytes | None:
        """Return the parts of a large event put together."""
        parts: list[bytes] = []
        subject, after = subjects.parts(message.subject), message.seq - count - 1
        while len(parts) < count:
            query = {"seq": after + 1, "next_by_subj": subject, "batch": count - len(parts)}
            found, _ = await self._store.connection.read(query)
            if not found or found[-1].seq >= message.seq:
                break
            parts += [part.data for part in found]
            after = found[-1].seq
        return b"".join(parts) if len(parts) == count else None

    async def range_of(self, channel: str, first: int, last: int) -> LogRange:
        """Return what stands behind a sequence, up to and including another one, counted."""
        made = LogRange(self, channel, first, last, await self._outcomes.aborted(channel, first, last))
        await made.measure()
        return made

    def published(self, message: StoredMessage) -> int:
        """Return when a message was stored, in the store's time."""
        return parse_stamp(message.stamp) + self._store.registry.offset_at(message.seq)


class EventNumber(NamedTuple):
    """A sequence, and how many events of the range stand up to and including it."""

    seq: int
    number: int


class LogRange:
    """What stands behind one sequence, up to and including another one; nothing is under way in it.

    It counts its events and finds the n-th without reading them: the server tells with every read how many
    messages follow. So one small read at a sequence tells which event stands there and, less what stands
    beyond the range, its number. The rest is guessing well.
    """

    def __init__(self, entries: Entries, channel: str, first: int, last: int, aborted: list[int]) -> None:
        self._entries, self._channel, self._aborted = entries, channel, aborted
        self._first, self._last = first, last
        self._messages = self._beyond = -1
        self._turns = asyncio.Semaphore(_PROBES_AT_ONCE)
        self.sizes: list[int] = []
        """How large the events are that were looked at on the way."""

    @property
    def count(self) -> int:
        """How many events there are."""
        return self._messages - len(self._aborted)

    async def measure(self) -> None:
        """Count, once, before anything is looked for."""
        _, self._messages = await self._look(self._first)

    async def _look(self, after: int) -> tuple[StoredMessage | None, int]:
        """Return the first message after a sequence, and how many there are from it to the end of the range.

        What is appended meanwhile counts as well, so this is repeated until nothing was.
        """
        message, count = None, 0
        async with self._turns:
            for _ in range(_PROBES):
                known = self._beyond
                message, count = await self._entries.first(self._channel, after)
                self._beyond = await self._entries.count(self._channel, self._last)
                if known == self._beyond:
                    break
        return message, max(count - self._beyond, 0)  # two servers may have counted

    async def find(self, number: int, below: int = 0, above: int = 0) -> EventNumber:
        """Return some event that is not far from the `number`-th: at most so many below or above it."""
        # The wanted one is behind `low`, and not behind `high`.
        low, high, halve = EventNumber(self._first, 0), EventNumber(self._last, self.count), False
        if number >= high.number:
            return high
        while low.number < number <= high.number and low.seq < high.seq:
            share = 0.5 if halve else (number - 1 - low.number) / (high.number - low.number)
            guess = min(low.seq + int((high.seq - low.seq) * share), high.seq - 1)
            spot = await self._probe(guess)
            if number - below <= spot.number <= number + above:
                return spot
            if spot.number < number:
                low = spot
            else:
                high = EventNumber(guess, spot.number - 1)
            halve = not halve
        return high  # the counts no longer agree: somebody trimmed meanwhile

    async def _probe(self, seq: int) -> EventNumber:
        """Return the first event behind a sequence of the range."""
        message, left = await self._look(seq)
        if message is None:  # trimmed under our eyes
            return EventNumber(self._last, self.count)
        self.sizes.append(codec.data_size(message))
        passed = bisect_right(self._aborted, message.seq)
        return EventNumber(message.seq, self._messages - left + 1 - passed)
