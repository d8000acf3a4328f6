"""Partitions: the stores that share a channel, and which of them an event belongs to."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import secrets
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

from holdfast.contracts import STORE_ERRORS, Applied, Backend, Start, raise_if_cancelled
from holdfast.model.errors import (
    HoldfastError,
    InvalidInput,
    NotFound,
    TooManyConnections,
    Unavailable,
)
from holdfast.model.event import Event
from holdfast.model.policy import Policy
from holdfast.model.redact import address
from holdfast.upkeep.lifecycle import Health, LifecycleSteps
from holdfast.upkeep.ticks import Ticks

log = logging.getLogger(__name__)

_STEP_EVERY = 1.0
_NAME_OF_STORE = "gbe.state.store"
"""A record of each store that is one of several, with a random name, written once."""
Subscription = tuple[str, str, Policy, Start]
"""Channel, consumer, policy and start."""


def home(channel: str, event: Event, count: int) -> int | None:
    """Return the store of an event with a caller's key or id; None where any store will do.

    The hash runs over the configured list, not over the healthy ones: an id must meet its first
    publication again, and a key its earlier events.
    """
    if event.key is None and not event.id:
        return None
    identity = ("key", event.key) if event.key is not None else (event.source, event.id)
    text = "\0".join((channel, *identity))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") % count


class Stores:
    """Which stores a list of URLs leads to. No two of them may be the same: all would be counted twice."""

    def __init__(self) -> None:
        self._urls: dict[str, str] = {}

    async def add(self, backend: Backend) -> None:
        """Add an opened store. Raises `InvalidInput` where it was added under another URL."""
        name = await _name_of(backend)
        url = self._urls.setdefault(name, backend.url)
        if url != backend.url:
            raise InvalidInput(
                f"{address(url)} and {address(backend.url)} are the same store, listed twice; name it once, "
                "and several servers of one store in one URL, as in nats://user@a:4222,b:4222,c:4222. If one "
                f"was restored from a copy of the other, delete the record {_NAME_OF_STORE} in one of them"
            )


async def _name_of(backend: Backend) -> str:
    """Return the store's random name, which whoever asks first gives it."""
    while (found := await backend.records.get(_NAME_OF_STORE)) is None:
        await backend.records.put(_NAME_OF_STORE, {"name": secrets.token_hex(16)}, 0)
    return found.fields["name"]


@dataclass(slots=True)
class Partition:
    """One store of a channel, with its health and its lifecycle."""

    index: int
    backend: Backend
    stores: Stores | None = None
    """All that are open, where there are several."""
    health: Health = field(default_factory=Health)
    opened: bool = False
    namespace: str = "gbe"
    """The first token of the channels for system events."""
    peers: Sequence[Partition] = ()
    """All partitions of the deployment, this one among them."""
    moves: Counter[str] = field(default_factory=Counter)
    """What this process' steps of the lifecycle did."""
    errors: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Failed calls of this process other than documented errors, by verb and kind of error."""
    _counting: threading.Lock = field(default_factory=threading.Lock)
    _stepped_at: float = 0.0
    _why: type[Unavailable] = Unavailable
    _healing: asyncio.Task[None] | None = None
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    ticks: Ticks = field(init=False)
    """What its schedules publish."""

    def __post_init__(self) -> None:
        on_error = partial(self.count_error, "schedules")
        self.ticks = Ticks(self.backend, self.namespace, self.store_of, on_error)

    def store_of(self, channel: str, key: str | None) -> Backend:
        """Return the store of what a schedule of this partition publishes: its own, where no key binds it to
        another one. Raises `Unavailable` while that one is faulty."""
        if key is None:
            return self.backend
        found = self.peers[home(channel, Event(key=key), len(self.peers)) or 0]
        if not found.usable:
            raise Unavailable(f"partition {found.index}, to which the key belongs, is faulty")
        return found.backend

    @property
    def lifecycle(self) -> LifecycleSteps:
        """The lifecycle of this partition."""
        return LifecycleSteps(
            self.backend,
            self.health,
            moves=self.moves,
            on_error=partial(self.count_error, "lifecycle"),
            namespace=self.namespace,
            ticks=self.ticks,
        )

    def count_error(self, verb: str, error: BaseException) -> None:
        """Count a failed call, from any thread. A documented error other than `Unavailable` is none."""
        if isinstance(error, Unavailable) or not isinstance(error, HoldfastError):
            with self._counting:
                self.errors[verb, type(error).__name__] += 1

    async def open(self) -> None:
        """Connect to the store. Raises `InvalidInput` where another partition has the same one."""
        await self.backend.open()
        try:
            if self.stores is not None:
                await self.stores.add(self.backend)
        except BaseException:
            await self.backend.close()
            raise
        self.opened = True

    async def heal(self, required: Sequence[Subscription] = ()) -> None:
        """Open the store if it is not, and read it once; raises `Unavailable` while it is faulty.

        Required consumers are created where they are missing.
        """
        async with self._turn:
            if self.usable:
                return  # somebody else has done it meanwhile
            if not self.health.worth_trying:
                raise self._why(f"partition {self.index} is faulty: {self.health.reason}")
            verb = "open"
            try:
                if not self.opened:
                    await self.open()
                verb = "subscribe"
                for each in required:
                    await self._ensure(*each)
            except STORE_ERRORS as error:
                raise_if_cancelled(error)
                self.count_error(verb, error)
                self.health.failed(str(error))
                self._why = TooManyConnections if isinstance(error, TooManyConnections) else Unavailable
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
            await self.backend.channels.consumer(channel, consumer)
        except NotFound:  # one that is there keeps the policy that an operator may have given it
            await self.backend.channels.subscribe(channel, consumer, policy, start)

    def heal_soon(self, required: Sequence[Subscription]) -> None:
        """Heal in the background: callers of the other stores do not wait for this one."""
        if self.health.worth_trying and (self._healing is None or self._healing.done()):
            self._healing = asyncio.create_task(self._try_to_heal(required))

    async def _try_to_heal(self, required: Sequence[Subscription]) -> None:
        try:
            await self.heal(required)
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
        stores = Stores() if len(backends) > 1 else None
        self.all = [Partition(*each, stores, namespace=namespace) for each in enumerate(backends)]
        for partition in self.all:
            partition.peers = self.all
        self.required: list[Subscription] = []
        self._turn = 0

    def require(self, subscription: Subscription) -> None:
        """From now on, every store must have this consumer as soon as it can be reached."""
        others = [each for each in self.required if each[:2] != subscription[:2]]
        self.required = [*others, subscription]

    async def open(self) -> None:
        """Open every store. One that fails is faulty; if none opens, the first error is raised."""
        errors: list[Unavailable] = []
        for partition in self.all:
            try:
                await partition.heal()
            except Unavailable as error:
                errors.append(error)
        if len(errors) == len(self.all):  # one that only lets nobody in for now is worth waiting for
            raise next((each for each in errors if isinstance(each, TooManyConnections)), errors[0])

    async def close(self) -> None:
        """Close every store that was opened."""
        for partition in self.all:
            await partition.close()

    async def ready(self, partition: Partition) -> Partition:
        """Return the partition once it takes new items. Raises `Unavailable` while it is faulty."""
        if not partition.usable:
            await partition.heal(self.required)
        return partition

    async def usable(self) -> list[Partition]:
        """Return every healthy partition, each call starting at the next one."""
        usable = [each for each in self.all if each.usable]
        if not usable:
            self._turn += 1
            usable = [await self.ready(self.all[self._turn % len(self.all)])]
        for partition in self.all:
            if partition not in usable:
                partition.heal_soon(self.required)
        self._turn += 1
        cut = self._turn % len(usable)
        return usable[cut:] + usable[:cut]

    async def least_loaded(self) -> Partition:
        """Return the healthy partition with the fewest live jobs."""
        return min(await self.usable(), key=lambda partition: partition.health.load)
