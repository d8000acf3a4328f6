"""The store: one stream, the mirror of its state, its time, and the one way to change it."""

from __future__ import annotations

import asyncio
import itertools
import secrets
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from holdfast.backends.nats import stream, subjects
from holdfast.backends.nats.batch import Batches, Incomplete, Message, Stale, state
from holdfast.backends.nats.committer import Committer
from holdfast.backends.nats.edit import Edit, fold
from holdfast.backends.nats.link import Link
from holdfast.backends.nats.mirror import Mirror
from holdfast.backends.nats.pauses import step_aside
from holdfast.backends.nats.registry import Registry
from holdfast.backends.nats.room import Room
from holdfast.backends.nats.times import parse_stamp
from holdfast.model.errors import HoldfastError, Unavailable
from holdfast.model.position import parse_position

_DOUBT = 10
_LONGEST = 20.0
"""Seconds for which a batch is offered. The server takes fifty unfinished ones, and gives each up after ten
seconds: as long may those that nobody ends keep all others out."""
TRIES = 60
"""How often a step is repeated that others overtook. Each time one of them got on, so this is no deadlock."""


class Store:
    """What every noun of this backend works on."""

    def __init__(self, url: str, history: int) -> None:
        self.link = Link(url)
        self.mirror = Mirror(self.link)
        self.history = history
        self._instance = secrets.token_hex(6)
        self.room = Room(self.link)
        self._committer = Committer(Batches(self.link))
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self.last = 0
        """The newest sequence of the stream when the store was last looked at."""
        self._generation = 0
        self._recognising = asyncio.Lock()

    async def open(self) -> None:
        await self.link.open()
        await self.recognise()

    async def close(self) -> None:
        """Leave the counts of this process to all, and give the connection back."""
        try:
            for ref, tallies in self.mirror.tallies_of(self._instance).items():
                async with self.lock(ref):
                    await self.commit(fold(self.mirror, tallies))
        except (HoldfastError, Stale):
            pass  # they count where they are as well
        finally:
            await self.link.close()

    @property
    def registry(self) -> Registry:
        return self.mirror.registry

    def lock(self, ref: str) -> asyncio.Lock:
        """One step at a time for a consumer, within this process: its counts have one writer."""
        return self._locks[ref]

    def edit(self, ref: str) -> Edit:
        return Edit(self.mirror, ref, self._instance, self.history)

    # looking

    async def fresh(self) -> int:
        """Bring the mirror up to date; answers the store's time in microseconds."""
        await self.recognise()
        stamp, _ = await asyncio.gather(self._stamp(), self.mirror.sync())
        for _ in range(TRIES):
            if self.registry.members.keys() <= self.mirror.cursors.keys():
                break
            await self.mirror.sync()  # somebody learned of a new consumer from the registry alone
        return stamp + self.registry.offset

    async def look(self) -> None:
        """Learn of the registry alone, for who only reads the log: the mirror is left as it is."""
        await self.recognise()
        await self.mirror.sync_registry()

    def place(self, position: str | None) -> int | None:
        """The sequence of a position, 0 for none; None when it is beyond everything."""
        return 0 if position is None else self.registry.seek(*parse_position(position, 1))

    async def clock(self) -> int:
        """The store's time alone, for who needs no jobs: the mirror is left as it is."""
        await self.recognise()
        stamp, _ = await asyncio.gather(self._stamp(), self.mirror.sync_registry())
        return stamp + self.registry.offset

    async def info(self) -> dict[str, Any]:
        return await stream.info(self.link)

    async def _stamp(self) -> int:
        info = await self.info()
        self.last = max(self.last, int(info["state"]["last_seq"]))
        return parse_stamp(info["ts"])

    async def recognise(self) -> None:
        """After a new connection: see whether this is the store that we knew. Another begins a new epoch."""
        await self.link.client()
        if self._generation == self.link.generation:
            return
        async with self._recognising:
            generation = self.link.generation
            if self._generation == generation:
                return
            identity = await stream.ensure(self.link)
            await self.mirror.distrust()
            self.last = 0
            if self.registry.identity != identity:
                info = await self.info()
                last, now = int(info["state"]["last_seq"]), parse_stamp(info["ts"])

                def recognised(known: Registry) -> Registry:
                    return known if known.identity == identity else known.with_identity(identity, last, now)

                await self.change_registry(recognised)
            self._generation = generation

    async def look_again(self, stale: int) -> None:
        """After a batch was refused for the `stale`-th time."""
        await self.back_off(stale)
        await self.mirror.sync()

    async def back_off(self, stale: int) -> None:
        """The same for who looks then himself. A mirror that cannot be right is thrown away."""
        await step_aside(stale)
        if stale % _DOUBT == 0:
            await self.mirror.reload()

    # changing

    async def commit(self, messages: Sequence[Message]) -> int:
        """Commit a batch and take it over; answers the sequence of its last message. Raises `Stale`."""
        until = time.monotonic() + _LONGEST
        for turn in itertools.count():
            try:
                last = await self._committer.commit(messages)
            except Incomplete:  # the stream does not capture some channel, or is busy with other batches
                if time.monotonic() > until:
                    break
                await self.capture()
                await step_aside(turn)
            else:
                self.mirror.adopt(messages, last)
                return last
        raise Unavailable(f"the stream {subjects.STREAM} did not take a batch of {len(messages)}; try again")

    async def change_registry(
        self,
        change: Callable[[Registry], Registry],
        also: Callable[[Registry], Awaitable[Sequence[Message]]] | None = None,
    ) -> Registry:
        """Replace the registry, repeating the change on whatever somebody else has made of it."""
        for turn in range(1, TRIES):
            known = self.registry
            wanted = change(known)
            if wanted is known:
                return known
            message = state(subjects.REGISTRY, wanted.encode(), known.revision)
            try:
                await self.commit([*(await also(wanted) if also else ()), message])
                return self.registry
            except Stale:
                await self.look_again(turn)
        raise Unavailable("the registry changed too often to change it as well; try again")

    async def ensure_channel(self, channel: str) -> None:
        """Make sure that a channel is known, and that the stream captures it."""
        if channel in self.registry.channels:
            return
        now = await self.fresh()
        if channel not in self.registry.channels:
            await stream.capture(self.link, [channel])
            await self.change_registry(lambda known: known.with_channel(channel, now))
        await self.capture()

    async def capture(self) -> None:
        """Another client may have changed the stream's subjects, and left some of ours out."""
        await stream.capture(self.link, list(self.registry.channels))
