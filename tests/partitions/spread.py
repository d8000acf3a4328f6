"""Short words for tests over two stores: whose key is whose, and what stands where."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from itertools import count
from typing import TypeVar
from urllib.parse import urlsplit

import holdfast
from holdfast.bus.partitions import home
from holdfast.contracts import Backend
from holdfast.model.event import Event
from holdfast.model.states import State
from holdfast_chaos.proxy import Proxy
from kit import CHANNEL, until

T = TypeVar("T")
STORES = 2


def key_of(store: int, number: int = 0) -> str:
    """The `number`-th key that belongs to a store."""
    keys = (key for key in map("key-{}".format, count()) if home(CHANNEL, Event(key=key), STORES) == store)
    return [next(keys) for _ in range(number + 1)][-1]


def id_of(store: int, number: int = 0) -> str:
    """The `number`-th id that belongs to a store."""
    ids = (name for name in map("id-{}".format, count()) if home(CHANNEL, Event(id=name), STORES) == store)
    return [next(ids) for _ in range(number + 1)][-1]


def store(bus: holdfast.Bus, index: int) -> Backend:
    return bus.partitions.all[index].backend


async def logged(bus: holdfast.Bus, index: int) -> list[str]:
    """The ids in one store's log, in its order."""
    return [entry.event.id for entry in await store(bus, index).log.read(CHANNEL, None, 10_000)]


async def state_of(bus: holdfast.Bus, index: int, event_id: str) -> State:
    [found] = await store(bus, index).leases.find_jobs(CHANNEL, "default", event_id)
    return found.state


async def eventually(ask: Callable[[], Awaitable[T]], patience: float = 60.0) -> T:
    """Ask until the store answers, as a caller would."""
    answers: list[T] = []

    async def answered() -> bool:
        try:
            answers.append(await ask())
        except holdfast.Unavailable:
            await asyncio.sleep(0.05)
        return bool(answers)

    await until(answered, patience)
    return answers[0]


def way_to(url: str) -> Proxy:
    """A way to the store that can be cut."""
    parts = urlsplit(url)
    return Proxy(parts.hostname or "", parts.port or 0)
