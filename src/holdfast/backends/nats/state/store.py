"""The store: one stream, the mirror of its state, its time, and the one way to change it."""

from __future__ import annotations

import asyncio
import itertools
import logging
import secrets
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

from holdfast.backends.nats.state.counts import fold_counts
from holdfast.backends.nats.state.mirror import Mirror
from holdfast.backends.nats.state.registry import Member, Registry
from holdfast.backends.nats.wire import leftovers, stream, subjects
from holdfast.backends.nats.wire.batches import (
    BatchCommitter,
    Batches,
    BatchMessage,
    Incomplete,
    Stale,
    backoff,
    state,
)
from holdfast.backends.nats.wire.codec import parse_stamp
from holdfast.backends.nats.wire.connection import NatsConnection
from holdfast.backends.nats.wire.parser import StoredMessage
from holdfast.backends.nats.wire.stream import Capacity
from holdfast.model.errors import HoldfastError, Unavailable
from holdfast.model.position import parse_position

log = logging.getLogger(__name__)

_DOUBT, _SURE = 10, 5
_Look = Callable[[], Awaitable[None]]
_LONGEST = 20.0
"""Seconds for which a batch is offered. The server takes fifty unfinished ones, and gives each up after ten
seconds: as long may those that nobody ends keep all others out."""
_LONGEST_WAIT, _SMOOTH = 1.0, 0.2
TRIES = 60
"""How often a step is repeated that others overtook. Each time one of them got on, so this is no deadlock."""


class TrimMark(NamedTuple):
    """Every event of a channel up to `seq` is gone, or is about to be; 0 where none is.

    Whoever begins to need a log, a new consumer of either kind, writes the mark again in the same batch. So a
    trim that was decided without it is stale, and is decided anew.
    """

    channel: str
    seq: int
    revision: int

    def moved(self, seq: int) -> BatchMessage:
        """Return the mark at another sequence, provided that nobody wrote it since."""
        return state(subjects.trimmed(self.channel), b"%d" % seq, self.revision)

    def again(self) -> BatchMessage:
        """Return the same mark, provided that nobody wrote it since."""
        return self.moved(self.seq)


class NatsStore:
    """What every noun of this backend works on."""

    def __init__(self, url: str, history: int) -> None:
        self.connection = NatsConnection(url)
        self.mirror = Mirror(self.connection)
        self.history = history
        self.instance = secrets.token_hex(6)
        self.capacity = Capacity(self.connection)
        self._committer = BatchCommitter(Batches(self.connection))
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self.when_changed: list[Callable[[], None]] = []
        """What to do when another server may be behind the connection."""
        self.generation = 0
        """The connection behind which the store was recognised, and since which the mirror was read."""
        self._begun = 0
        """The connection with which the present epoch began."""
        self._commit_seconds = 0.003
        """What a commit takes, about, as of late."""
        self._recognising, self._changing = asyncio.Lock(), asyncio.Lock()

    async def open(self) -> None:
        await self.connection.open()
        await self.recognise()

    async def close(self) -> None:
        """Leave the counts of this process to all, and give the connection back."""
        try:
            for ref, counted in self.mirror.count_subjects_of(self.instance).items():
                async with self.lock(ref):
                    await self.commit(fold_counts(self.mirror, counted))
        except (HoldfastError, Stale):
            pass  # they count where they are as well
        finally:
            await self.connection.close()

    @property
    def registry(self) -> Registry:
        return self.mirror.registry

    def lock(self, ref: str) -> asyncio.Lock:
        """Return a consumer's lock within this process: its counts have one writer."""
        return self._locks[ref]

    # looking

    async def fresh(self) -> int:
        """Learn of all consumers; returns the store's time in microseconds."""
        await self.recognise()
        stamp = await self._stamp_with(self.mirror.sync)
        for _ in range(TRIES):
            if self.registry.members.keys() <= self.mirror.frontiers.keys():
                return stamp + self.registry.offset
            await self.mirror.sync()  # somebody learned of a new consumer from the registry alone
        raise Unavailable("consumers come and go too often to look at all of them; try again")

    async def consumer(self, channel: str, consumer: str) -> tuple[Member, int]:
        """Learn of one consumer; returns it and the store's time. Raises `NotFound`."""
        for _ in range(TRIES):
            await self.recognise()
            known = self.registry.by_name.get((channel, consumer))
            if known is None:
                now = await self.clock()
            else:
                now = await self.clock(partial(self.mirror.sync, known.ref))
            member = self.registry.member(channel, consumer)
            if known is not None and member.ref == known.ref and member.ref in self.mirror.frontiers:
                return member, now
        raise Unavailable(f"consumer {consumer!r} of {channel!r} changes too often; try again")

    async def look(self) -> None:
        """Learn of the registry alone, which is enough to read the log; the jobs stay as they are."""
        await self.recognise()
        if self.connection.is_replicated:
            await self.info()
        await self.mirror.sync_registry()

    def sequence(self, position: str | None) -> int | None:
        """Return the sequence of a position, 0 for none; None when it is beyond everything."""
        return 0 if position is None else self.registry.seek(*parse_position(position, 1))

    async def clock(self, *looks: _Look) -> int:
        """Return the store's time; learn of the registry, and by other looks, the mirror of jobs as it is."""
        await self.recognise()
        return await self._stamp_with(self.mirror.sync_registry, *looks) + self.registry.offset

    async def trim_mark(self, channel: str) -> TrimMark:
        """Return up to where a channel was trimmed."""
        found = await self.newest(subjects.trimmed(channel))
        return TrimMark(channel, 0, 0) if found is None else TrimMark(channel, int(found.data), found.seq)

    async def newest(self, subject: str) -> StoredMessage | None:
        """Return what a subject has, as the stream's leader knows: for what is believed without a
        compare-and-set. The connection may lead to a server that has just ceased to be the leader."""
        return await stream.last(self.connection, subject)

    async def info(self) -> dict[str, Any]:
        return await stream.info(self.connection)

    async def _stamp_with(self, *looks: _Look) -> int:
        """Return the server's time, and learn of what was committed before this call."""
        if self.connection.is_replicated:  # its leader says up to where that is, and another server is read
            stamp = await self._stamp()
            await asyncio.gather(*(look() for look in looks))
            return stamp
        asked = asyncio.gather(*(look() for look in looks))
        stamp, _ = await asyncio.gather(self._stamp(), asked)
        return stamp

    async def _stamp(self) -> int:
        return parse_stamp((await self.info())["ts"])

    async def recognise(self) -> None:
        """After a new connection: see whether this is the store that we knew. Another begins a new epoch."""
        await self.connection.client()
        if self.generation == self.connection.generation:
            return
        async with self._recognising:
            for _ in range(TRIES):
                generation = self.connection.generation
                if self.generation == generation:
                    return
                identity = await stream.ensure(self.connection)
                await self.connection.client()
                if self.connection.generation == generation:  # or the stream's leader is another server
                    await self._recognise(identity, generation)
        raise Unavailable("the connection to NATS was lost too often; try again")

    async def _recognise(self, identity: str, generation: int) -> None:
        epochs, last, now = self.registry.epochs, *await self._end()
        is_behind = last < self.connection.seen
        if is_behind:
            lost = last + 1, self.connection.seen
            log.error("NATS has lost messages that it had acknowledged: %d to %d", *lost)
            self.connection.seen = last
        await self.mirror.reload()
        for changed in self.when_changed:
            changed()
        is_another = self.registry.identity != identity
        if is_another and (removed := await leftovers.remove(self.connection, last)):
            log.warning("NATS had %d messages again that were replaced before it ended", removed)

        def recognised(known: Registry) -> Registry:
            is_known = known.identity == identity and not (is_behind and known.epochs == epochs)
            return known if is_known else known.with_identity(identity, last, now)

        if is_another or is_behind:
            self._begun = generation
        await self._change_registry(recognised, generation=generation)
        self.generation = generation

    async def _end(self) -> tuple[int, int]:
        """Return the last sequence of the stream, and the time in microseconds."""
        for turn in range(_SURE):
            info = await stream.info(self.connection)
            last = int(info["state"]["last_seq"])
            if last >= self.connection.seen or not self.connection.is_replicated:
                break
            await backoff(turn)  # a leader that was paused may not know yet that it is none any more
        return last, parse_stamp(info["ts"])

    async def look_again(self, stale: int, ref: str) -> None:
        """Wait and learn what changed of a consumer, after a batch was refused for the `stale`-th time."""
        await self.wait_after(stale)
        await self.mirror.sync_registry()
        if ref in self.registry.members:
            await self.mirror.sync(ref)

    async def wait_after(self, stale: int, share: float = 1.0) -> None:
        """Wait before another try, not after 0 lost ones. A mirror that cannot be right is read anew.

        The busier the server, the longer its commits take, and the more of those that are offered at the same
        time are refused: each for nothing. So waits grow with that time. A smaller `share` of them is for who
        must not be overtaken by all others.
        """
        if stale:
            await backoff(stale - 1, 2 * self._commit_seconds * share, _LONGEST_WAIT * share)
        if stale and stale % _DOUBT == 0:
            await self.mirror.reload()

    # changing

    async def commit(self, messages: Sequence[BatchMessage], generation: int | None = None) -> int:
        """Commit a batch and take it over. Returns the sequence of its last message. Raises `Stale`.

        `generation` is that of the connection in whose time it was decided, where that is not just now.
        """
        began, decided = time.monotonic(), generation or self.generation
        until = began + _LONGEST
        for turn in itertools.count():
            try:
                last = await self._commit(messages, await self._followed(decided))
            except Incomplete:  # the stream does not capture some channel, or is busy with other batches
                if time.monotonic() > until:
                    break
                await self.capture()
                await backoff(turn)
            else:
                self._commit_seconds += (time.monotonic() - began - self._commit_seconds) * _SMOOTH
                return last
        raise Unavailable(f"the stream {subjects.STREAM} did not take a batch of {len(messages)}; try again")

    async def _followed(self, generation: int) -> int:
        """Return the present connection for what was decided in the time of an older one: of a replicated
        stream it leads to another server that has all of it, unless some was lost meanwhile."""
        if not self.connection.is_replicated:
            return generation
        await self.recognise()
        return self.generation if generation >= self._begun else generation

    async def _commit(self, messages: Sequence[BatchMessage], generation: int) -> int:
        last = await self._committer.commit(messages, generation)
        self.connection.seen = max(self.connection.seen, last)
        self.mirror.adopt(messages, last)
        return last

    async def wake(self, channels: Iterable[str]) -> None:
        """Tell listeners that there may be new work. They may miss it."""
        await self._tell([(channel, b"") for channel in channels])

    async def tell_cancelled(self, channel: str, consumers: Sequence[str], seq: int) -> None:
        """Tell listeners that a leased job of these consumers was cancelled. They may miss it."""
        await self._tell([(channel, f"{consumer}/{seq}".encode()) for consumer in consumers])

    async def _tell(self, notices: Iterable[tuple[str, bytes]]) -> None:
        with suppress(Exception):  # what was done is done: whoever did it must not hear otherwise
            client = await self.connection.client()
            for channel, data in notices:
                await client.publish(subjects.wake(channel), data)

    async def change_registry(
        self,
        change: Callable[[Registry], Registry],
        also: Callable[[Registry], Awaitable[Sequence[BatchMessage]]] | None = None,
    ) -> Registry:
        """Replace the registry, repeating the change on whatever somebody else has made of it.

        Calls of one process take turns: many at once would refuse each other, and one might never get on.
        """
        async with self._changing:
            return await self._change_registry(change, also)

    async def _change_registry(
        self,
        change: Callable[[Registry], Registry],
        also: Callable[[Registry], Awaitable[Sequence[BatchMessage]]] | None = None,
        generation: int | None = None,
    ) -> Registry:
        for turn in range(1, TRIES):
            known = self.registry
            wanted, decided = change(known), self.generation
            if wanted is known:
                return known
            message = state(subjects.REGISTRY, wanted.encode(), known.revision)
            try:
                messages = [*(await also(wanted) if also else ()), message]
                if generation is None:
                    await self.commit(messages, decided)
                else:  # who recognises a store knows its connection
                    await self._commit(messages, generation)
                return self.registry
            except (Stale, Incomplete):
                await self.wait_after(turn)
                await self.mirror.sync_registry()
        raise Unavailable("the registry changed too often to change it as well; try again")

    async def ensure_channel(self, channel: str) -> None:
        """Make sure that a channel is known, and that the stream captures it."""
        if channel in self.registry.channels:
            return
        now = await self.clock()
        if channel not in self.registry.channels:
            await stream.capture(self.connection, [channel])
            await self.change_registry(lambda known: known.with_channel(channel, now))
        await self.capture()

    async def capture(self) -> None:
        """Another client may have changed the stream's subjects, and left some of ours out."""
        await stream.capture(self.connection, list(self.registry.channels))
