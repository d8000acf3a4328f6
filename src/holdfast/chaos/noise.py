"""Noise: calls that reach the store twice, or late, as a network that repeats and reorders would have it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any, TypeVar

from holdfast.contracts import Backend
from holdfast.model.errors import HoldfastError
from holdfast.model.event import Event, Receipt
from holdfast.model.job import Burial, Job, Retry

T = TypeVar("T")
_SHARE, _LONGEST = 0.1, 0.2


class Noisy:
    """A backend of which some calls are sent twice or wait. The first answer counts, as it does for a client
    whose request was repeated under way."""

    def __init__(self, inner: Backend, chance: random.Random) -> None:
        self._inner, self._chance = inner, chance

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def fork(self) -> Noisy:
        return Noisy(self._inner.fork(), self._chance)

    async def publish(self, channel: str, events: Sequence[Event], **options: Any) -> list[Receipt]:
        return await self._disturbed(lambda: self._inner.publish(channel, events, **options))

    async def complete(self, jobs: Sequence[Job]) -> list[bool]:
        return await self._disturbed(lambda: self._inner.complete(jobs))

    async def retry(self, retries: Sequence[Retry]) -> list[bool]:
        return await self._disturbed(lambda: self._inner.retry(retries))

    async def bury(self, burials: Sequence[Burial]) -> list[bool]:
        return await self._disturbed(lambda: self._inner.bury(burials))

    async def extend(self, jobs: Sequence[Job], by: timedelta) -> list[bool]:
        return await self._disturbed(lambda: self._inner.extend(jobs, by))

    async def _disturbed(self, ask: Callable[[], Awaitable[T]]) -> T:
        drawn = self._chance.random()
        if drawn < _SHARE:
            await asyncio.sleep(self._chance.uniform(0, _LONGEST))
        answer = await ask()
        if drawn > 1 - _SHARE:
            with suppress(HoldfastError):  # nobody waits for the answer to a repeated request
                await ask()
        return answer
