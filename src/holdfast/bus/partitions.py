"""Partitions: the stores that share a channel, and which of them an event belongs to."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

from holdfast.contracts import STORE_ERRORS, Applied, Backend, Start, raise_if_cancelled
from holdfast.model.errors import HoldfastError, NotFound, Unavailable
from holdfast.model.event import Event
from holdfast.model.policy import Policy
from holdfast.upkeep.health import Health
from holdfast.upkeep.lifecycle import Lifecycle

log = logging.getLogger(__name__)

_STEP_EVERY = 1.0
Wanted = tuple[str, str, Policy, Start]


def home(channel: str, event: Event, count: int) -> int | None:
    """The store of an event with a caller's key or id; None where any store will do.

    The hash runs over the configured list, not over the healthy ones: an id must meet its first
    publication again, and a key its earlier events.
    """
    if event.key is None and not event.id:
        return None
    identity = ("key", event.key) if event.key is not None else (event.source, event.id)
    text = "\0".join((channel, *identity))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") % count


@dataclass(slots=True)
class Partition:
    """One store of a channel, with its health and its lifecycle."""

    index: int
    backend: Backend
    health: Health = field(default_factory=Health)
    opened: bool = False
    namespace: str = "gbe"
    """The first token of the channels for system events."""
    moves: Counter[str] = field(default_factory=Counter)
    """What this process' steps of the lifecycle did."""
    errors: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Calls of this process that the store did not answer as documented, by verb and kind of error."""
    _counting: threading.Lock = field(default_factory=threading.Lock)
    _stepped_at: float = 0.0
    _healing: asyncio.Task[None] | None = None
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def lifecycle(self) -> Lifecycle:
        """The lifecycle of this partition."""
        on_error = partial(self.count_error, "lifecycle")
        return Lifecycle(
            self.backend, self.health, moves=self.moves, on_error=on_error, namespace=self.namespace
        )

    def count_error(self, verb: str, error: BaseException) -> None:
        """Count a failed call, from any thread. A documented error other than `Unavailable` is none."""
        if isinstance(error, Unavailable) or not isinstance(error, HoldfastError):
            with self._counting:
                self.errors[verb, type(error).__name__] += 1

    async def heal(self, wanted: Sequence[Wanted] = ()) -> None:
        """Open the store if it is not, and read it once; raises `Unavailable` while it is faulty.

        The consumers that are wanted are created where they are missing.
        """
        async with self._turn:
            if self.usable:
                return  # somebody else has done it meanwhile
            if not self.health.worth_trying:
                raise Unavailable(f"partition {self.index} is faulty: {self.health.reason}")
            verb = "open"
            try:
                if not self.opened:
                    await self.backend.open()
                    self.opened = True
                verb = "subscribe"
                for each in wanted:
                    await self._ensure(*each)
            except STORE_ERRORS as error:
                raise_if_cancelled(error)
                self.count_error(verb, error)
                self.health.failed(str(error))
                raise
            await self._first_step()

    async def _first_step(self) -> None:
        """The read decides whether the store can be used; what cannot be applied is tried again."""
        try:
            await self.step()
        except HoldfastError:
            raise
        except STORE_ERRORS as error:
            raise_if_cancelled(error)
            log.warning("partition %s: lifecycle step failed: %r", self.index, error, exc_info=True)

    @property
    def usable(self) -> bool:
        """Whether it is connected and takes new items."""
        return self.opened and not self.health.faulty

    async def _ensure(self, channel: str, consumer: str, policy: Policy, start: Start) -> None:
        try:
            await self.backend.consumer(channel, consumer)
        except NotFound:  # one that is there keeps the policy that an operator may have given it
            await self.backend.subscribe(channel, consumer, policy, start)

    def heal_soon(self, wanted: Sequence[Wanted]) -> None:
        """Try in the background: whoever asks the other stores does not wait for this one."""
        if self.health.worth_trying and (self._healing is None or self._healing.done()):
            self._healing = asyncio.create_task(self._try_to_heal(wanted))

    async def _try_to_heal(self, wanted: Sequence[Wanted]) -> None:
        try:
            await self.heal(wanted)
        except STORE_ERRORS as error:
            raise_if_cancelled(error)
            log.info("partition %s is still faulty: %r", self.index, error)

    async def close(self) -> None:
        """Close the store if it was opened."""
        if self._healing is not None:
            self._healing.cancel()
            await asyncio.gather(self._healing, return_exceptions=True)
        if self.opened:
            self.opened = False
            await self.backend.close()

    async def step(self) -> Applied:
        """One step of the lifecycle."""
        self._stepped_at = time.monotonic()
        return await self.lifecycle.run_once()

    @property
    def overdue(self) -> bool:
        """Whether nobody here has stepped the lifecycle for a while."""
        return time.monotonic() - self._stepped_at > _STEP_EVERY


class Partitions:
    """All stores of a bus, in the configured order."""

    def __init__(self, backends: Sequence[Backend], namespace: str = "gbe") -> None:
        self.all = [Partition(index, backend, namespace=namespace) for index, backend in enumerate(backends)]
        self.wanted: list[Wanted] = []
        self._turn = 0

    def want(self, wanted: Wanted) -> None:
        """From now on, every store must have this consumer as soon as it can be reached."""
        self.wanted = [each for each in self.wanted if each[:2] != wanted[:2]] + [wanted]

    async def open(self) -> None:
        """Open every store. One that fails is faulty; if none opens, the first error is raised."""
        errors: list[Unavailable] = []
        for partition in self.all:
            try:
                await partition.heal()
            except Unavailable as error:
                errors.append(error)
        if len(errors) == len(self.all):
            raise errors[0]

    async def close(self) -> None:
        """Close every store that was opened."""
        for partition in self.all:
            await partition.close()

    async def ready(self, partition: Partition) -> Partition:
        """The partition if it takes new items, healing it if it is time to try."""
        if not partition.usable:
            await partition.heal(self.wanted)
        return partition

    async def usable(self) -> list[Partition]:
        """Every healthy partition, each call starting at the next one."""
        usable = [each for each in self.all if each.usable]
        if not usable:
            self._turn += 1
            usable = [await self.ready(self.all[self._turn % len(self.all)])]
        for partition in self.all:
            if partition not in usable:
                partition.heal_soon(self.wanted)
        self._turn += 1
        cut = self._turn % len(usable)
        return usable[cut:] + usable[:cut]

    async def least_loaded(self) -> Partition:
        """The healthy partition with the fewest live jobs."""
        return min(await self.usable(), key=lambda partition: partition.health.load)
