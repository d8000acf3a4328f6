"""Entries: the log as it may be read, without what a publish of several batches has not committed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence

from holdfast.backends.nats import codec, subjects
from holdfast.backends.nats.answers import Stored
from holdfast.backends.nats.fates import Fates
from holdfast.backends.nats.records import Record
from holdfast.backends.nats.store import Store
from holdfast.backends.nats.times import parse_stamp
from holdfast.model.errors import DataLost
from holdfast.model.event import Event

PAGE = 1000
_BACK = 256
_WIDER = 4  # messages that are read for each that is wanted
_KEPT, _SMALL = 2_000, 4_000  # messages that are remembered, and bytes that one of them may have


class Entries:
    """Reads messages of channels, and events whole."""

    def __init__(self, store: Store, fates: Fates) -> None:
        self._store, self._fates = store, fates
        self._recent: dict[int, Stored] = {}
        self._generation = 0

    async def page(self, channel: str, after: int, limit: int) -> tuple[list[Stored], int]:
        """Up to `limit` entries after a sequence, in order, and the sequence up to which there are no others.

        It ends before a publish that is under way, since that may still commit below what comes later.
        """
        found: list[Stored] = []
        while len(found) < limit:
            query = {"seq": after + 1, "next_by_subj": channel, "batch": min(limit - len(found), PAGE)}
            messages, pending = await self._store.link.read(query)
            fates = await self.fates(channel, messages)
            for message in messages:
                fate = fates.get(message.headers.get(subjects.PUBLISH), True)
                if fate is None:
                    return found, after
                after = message.seq
                if fate:
                    found.append(message)
            if not pending:
                break
        self._keep(found)
        return found, after

    def _keep(self, messages: Iterable[Stored]) -> None:
        """Remember what was read of late: whoever makes jobs mostly hands them out, too, and to several
        consumers. A message never changes, but another server may have another one in its place; the parts
        of a large event may be gone."""
        if self._generation != self._store.link.generation:
            self._generation = self._store.link.generation
            self._recent.clear()
        self._recent |= {each.seq: each for each in messages if 0 < len(each.data) <= _SMALL}
        for seq in list(self._recent)[: max(len(self._recent) - _KEPT, 0)]:
            del self._recent[seq]

    async def fates(self, channel: str, messages: Sequence[Stored]) -> Mapping[str | None, bool | None]:
        """The fates of all publishes of several batches that have messages among these."""
        publishes = {
            publish: message.stamp
            for message in messages
            if (publish := message.headers.get(subjects.PUBLISH)) is not None
        }
        return dict((await self._fates.of(channel, publishes)).items())

    async def first(self, channel: str, after: int) -> tuple[Stored | None, int]:
        """The first message after a sequence, and how many there are, with those that were aborted."""
        query = {"seq": after + 1, "next_by_subj": channel, "batch": 1}
        found, pending = await self._store.link.read(query)
        return (found[0], pending + 1) if found else (None, 0)

    async def count(self, channel: str, after: int) -> int:
        """How many messages follow a sequence, with those that were aborted."""
        return (await self.first(channel, after))[1]

    async def last(self, channel: str, until: int) -> Stored | None:
        """The newest entry up to a sequence at which nothing is under way any more."""
        back = _BACK
        while until > 0:
            query = {"multi_last": [channel], "up_to_seq": until, "batch": 1}
            newest, _ = await self._store.link.read(query)
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

    async def _committed(self, channel: str, messages: Sequence[Stored]) -> list[Stored]:
        fates = await self.fates(channel, messages)
        return [each for each in messages if fates.get(each.headers.get(subjects.PUBLISH), True)]

    async def at(self, channel: str, seqs: Sequence[int]) -> dict[int, Stored]:
        """The messages of some sequences, as far as they still are in the log."""
        self._keep(())
        found = {seq: self._recent[seq] for seq in seqs if seq in self._recent}
        wanted = set(seqs) - found.keys()
        if wanted:
            # Jobs mostly leave in log order, with gaps where others took some: one page often has them all,
            # and a request for each of the rest costs the server more than what lies between them.
            batch = 1 if len(wanted) == 1 else min(_WIDER * len(wanted), PAGE)
            first = {"seq": min(wanted), "next_by_subj": channel, "batch": batch}
            messages = (await self._store.link.read(first))[0]
            missing = wanted - {message.seq for message in messages}
            rest = [{"seq": seq, "next_by_subj": channel, "batch": 1} for seq in missing]
            for more, _ in await asyncio.gather(*map(self._store.link.read, rest)):
                messages += more
            self._keep(messages)
            found |= {message.seq: message for message in messages if message.seq in wanted}
        return found

    async def of_jobs(self, channel: str, jobs: Sequence[Record]) -> dict[int, Stored]:
        """The messages of some jobs: with other data, from the log, or the copies that dead letters keep."""
        found = await self.at(channel, [job.seq for job in jobs if not job.patch])
        places = {job.patch or job.copy: job.seq for job in jobs if job.seq not in found}
        places.pop("", None)
        for each in await self._store.link.exact(list(places)):
            if subjects.CE_ID in each.headers:
                found[places[each.subject]] = each
        return found

    async def of_job(self, channel: str, job: Record) -> Event | None:
        """One job's event, as its consumer gets it; None where it is gone."""
        found = await self.of_jobs(channel, [job])
        return (await self.events(found.values()))[0] if found else None

    async def events(self, messages: Iterable[Stored]) -> list[Event | None]:
        """Messages as events; the parts of large ones are fetched. None where some of them are gone."""
        return [await self._event(message) for message in messages]

    async def intact(self, channel: str, messages: Sequence[Stored]) -> list[Event]:
        """The same for who must not miss any: `DataLost` where parts are gone."""
        found = [event for event in await self.events(messages) if event is not None]
        if len(found) < len(messages):
            raise DataLost(f"parts of a large event of channel {channel!r} were removed before it was read")
        return found

    async def _event(self, message: Stored) -> Event | None:
        count = codec.part_count(message)
        whole = await self._whole(message, count) if count else None
        if count and whole is None:
            return None
        return codec.decode(message, self.published(message), whole)

    async def _whole(self, message: Stored, count: int) -> bytes | None:
        """The parts of a large event put together."""
        parts: list[bytes] = []
        subject, after = subjects.parts(message.subject), message.seq - count - 1
        while len(parts) < count:
            query = {"seq": after + 1, "next_by_subj": subject, "batch": count - len(parts)}
            found, _ = await self._store.link.read(query)
            if not found or found[-1].seq >= message.seq:
                break
            parts += [part.data for part in found]
            after = found[-1].seq
        return b"".join(parts) if len(parts) == count else None

    def published(self, message: Stored) -> int:
        """When a message was stored, in the store's time."""
        return parse_stamp(message.stamp) + self._store.registry.offset_at(message.seq)
