"""Backends that misbehave on purpose: with one guard less, or with calls that arrive twice or late.

A backend is wrapped noun by noun: a wrapper of a noun overrides some of its verbs, the others pass through.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any, ClassVar, TypeVar

from holdfast.contracts import Backend
from holdfast.model.errors import HoldfastError
from holdfast.model.event import Event, Receipt
from holdfast.model.job import Burial, Job, Retry
from holdfast.wiring import backend

T = TypeVar("T")
_SHARE, _LONGEST = 0.1, 0.2


class WrappedNoun:
    """One noun of a backend. Subclasses name it and override verbs; `inner` is the whole backend."""

    noun: ClassVar[str]

    def __init_subclass__(cls, noun: str | None = None) -> None:
        if noun is not None:
            cls.noun = noun

    def __init__(self, inner: Backend) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(getattr(self.inner, self.noun), name)


class FaultyBackend:
    """A backend of which some nouns have a guard less."""

    def __init__(self, inner: Backend, nouns: Sequence[type[WrappedNoun]]) -> None:
        self.inner = inner
        vars(self).update({each.noun: each(inner) for each in nouns})

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


def faulty(inner: Backend, *nouns: type[WrappedNoun]) -> Backend:
    """A backend with these nouns in place of its own."""
    wrapped: Any = FaultyBackend(inner, nouns)
    made: Backend = wrapped
    return made


def maker(sound: bool, *nouns: type[WrappedNoun]) -> Callable[[str], Backend]:
    """Makes backends from their URLs: sound ones, or such with these nouns in place of their own."""
    return backend if sound else lambda url: faulty(backend(url), *nouns)


class DuplicateCalls:
    """A backend of which some calls are sent twice or wait, as a network that repeats and reorders would have
    it. The first answer counts, as it does for a client whose request was repeated on the way."""

    def __init__(self, inner: Backend, chance: random.Random) -> None:
        self._inner, self._chance = inner, chance
        self.log, self.leases = _DuplicateLog(inner, chance), _DuplicateLeases(inner, chance)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def fork(self) -> DuplicateCalls:
        return DuplicateCalls(self._inner.fork(), self._chance)


class _DuplicateNoun(WrappedNoun):
    def __init__(self, inner: Backend, chance: random.Random) -> None:
        super().__init__(inner)
        self._chance = chance

    async def _disturbed(self, ask: Callable[[], Awaitable[T]]) -> T:
        drawn = self._chance.random()
        if drawn < _SHARE:
            await asyncio.sleep(self._chance.uniform(0, _LONGEST))
        answer = await ask()
        if drawn > 1 - _SHARE:
            with suppress(HoldfastError):  # nobody waits for the answer to a repeated request
                await ask()
        return answer


class _DuplicateLog(_DuplicateNoun, noun="log"):
    async def publish(self, channel: str, events: Sequence[Event], **options: Any) -> list[Receipt]:
        return await self._disturbed(lambda: self.inner.log.publish(channel, events, **options))


class _DuplicateLeases(_DuplicateNoun, noun="leases"):
    async def complete(self, jobs: Sequence[Job]) -> list[bool]:
        return await self._disturbed(lambda: self.inner.leases.complete(jobs))

    async def retry(self, retries: Sequence[Retry]) -> list[bool]:
        return await self._disturbed(lambda: self.inner.leases.retry(retries))

    async def bury(self, burials: Sequence[Burial]) -> list[bool]:
        return await self._disturbed(lambda: self.inner.leases.bury(burials))

    async def extend(self, jobs: Sequence[Job], by: timedelta) -> list[bool]:
        return await self._disturbed(lambda: self.inner.leases.extend(jobs, by))
