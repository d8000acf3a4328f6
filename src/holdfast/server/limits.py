"""Limits: how often a caller may ask, how much runs at once, what is created, how many lines are logged."""

from __future__ import annotations

import logging
import math
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from holdfast.bus.partitions import Partitions
from holdfast.config.config import ServerLimits
from holdfast.contracts import Backend
from holdfast.model.errors import Unavailable
from holdfast.server.auth.caller import Caller
from holdfast.server.auth.tokens import hash_of
from holdfast.server.errors import Conflict, Full, TooManyRequests

MINUTE = 60.0
_MOST = 10_000
"""Buckets that are kept without looking for those that are full again."""
_AT_ONCE, _RATE, _RATE_OF_ALL = 10, 1, 20
"""Failed logins of an address at once and a second, and of all addresses a second."""
_KNOWN = 1_000
_TRIES = "tries to sign in"


@dataclass(slots=True)
class _Minute:
    began: float
    lines: int = 0
    left_out: int = 0


class PerMinute:
    """At most so many log lines of each kind a minute. The kinds must be few: each is remembered."""

    def __init__(self, most: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._most, self._clock = most, clock
        self._kinds: dict[str, _Minute] = {}

    def take(self, kind: str) -> str | None:
        """What to add to a line: how many were left out before it. None where this one is left out too."""
        now, minute = self._clock(), self._kinds.get(kind)
        left_out = 0
        if minute is None or now - minute.began >= MINUTE:
            left_out = minute.left_out if minute is not None else 0
            minute = self._kinds[kind] = _Minute(now)
        if minute.lines >= self._most:
            minute.left_out += 1
            return None
        minute.lines += 1
        return f" ({left_out} more since the last line)" if left_out else ""


class OncePerMinute(logging.Filter):
    """Lets one line a minute through of each message that strangers can cause, and counts the others."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._lines = PerMinute(1, clock)

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether it is logged; errors always are."""
        if record.levelno > logging.WARNING:
            return True
        more = self._lines.take(record.msg)
        if more:
            record.msg += more
        return more is not None


class Buckets:
    """Token buckets: so many requests a second for each caller, and some more at once, in this process."""

    def __init__(
        self,
        rate: int,
        clock: Callable[[], float] = time.monotonic,
        *,
        at_once: int | None = None,
        what: str = "requests with this token",
    ) -> None:
        self._rate, self._clock, self._what = rate, clock, what
        self._size = 2.0 * rate if at_once is None else at_once
        self._full_at: dict[str, float] = {}
        self._most = _MOST

    def take(self, caller: str) -> None:
        """Take one request out of the caller's bucket; raises `TooManyRequests` where it is empty."""
        if not self._rate:
            return
        now = self._clock()
        full_at = max(self._full_at.get(caller, now), now) + 1 / self._rate
        wait = full_at - now - self._size / self._rate
        if wait > 1e-9:
            raise TooManyRequests(math.ceil(wait), self._what)
        self._full_at[caller] = full_at
        if len(self._full_at) > self._most:
            self._forget(now)

    def give_back(self, caller: str) -> None:
        """Put one request back that was taken."""
        if caller in self._full_at:
            self._full_at[caller] -= 1 / self._rate

    def _forget(self, now: float) -> None:
        """Forget the buckets that are full again: they are like new ones. The others are looked through again
        when there are twice as many."""
        self._full_at = {caller: full for caller, full in self._full_at.items() if full > now}
        self._most = max(_MOST, 2 * len(self._full_at))


class Logins:
    """Limits the failed logins of each address, and of all, in this process. Who has signed in here lately is
    not limited: behind a proxy, somebody who guesses has the same address as everybody else."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._each = Buckets(_RATE, clock, at_once=_AT_ONCE, what=_TRIES)
        self._all = Buckets(_RATE_OF_ALL, clock, what=_TRIES)
        self._known: dict[str, bool] = {}

    async def attempt(
        self, address: str, secret: str, begin: Callable[[], Awaitable[str | None]]
    ) -> str | None:
        """Returns what `begin` returns, a session or None. Raises `TooManyRequests` before it is called."""
        key = hash_of(secret)
        known = self._known.pop(key, False)
        if not known:
            self._each.take(address)
            self._all.take("")
        session = await begin()
        if session is not None:
            if not known:
                self._each.give_back(address)
                self._all.give_back("")
            self._known[key] = True
            if len(self._known) > _KNOWN:
                del self._known[next(iter(self._known))]
        return session


class Slots:
    """How many of something may be open at once, for each caller and in all, in this process."""

    def __init__(self, what: str, *, each: int, total: int) -> None:
        self._what, self._each, self._total = what, each, total
        self._taken: Counter[str] = Counter()

    @contextmanager
    def take(self, caller: str) -> Iterator[None]:
        """Hold a slot for a caller; raises `Full` where none is free."""
        if self._taken[caller] >= self._each:
            raise Full(429, f"{self._each} {self._what} of this caller are open; close some of them")
        if self._taken.total() >= self._total:
            raise Full(503, f"{self._total} {self._what} are open here; come again later")
        self._taken[caller] += 1
        try:
            yield
        finally:
            self._taken[caller] -= 1
            if not self._taken[caller]:
                del self._taken[caller]


class CreationLimits:
    """Limits how many channels a token may create, and the consumers and schedules of a channel. Not for
    admins."""

    def __init__(self, partitions: Partitions, limits: ServerLimits) -> None:
        self._partitions, self._limits = partitions, limits
        self._known: set[str] = set()  # no channel is ever removed: those that were seen need no second look

    async def check_channel(self, caller: Caller, channel: str) -> None:
        """Raise `Conflict` where publishing would create one channel more than a token may cover."""
        if channel in self._known or caller.may("admin"):
            return
        self._known.update(await self._channels())
        if channel in self._known:
            return
        if sum(caller.may("publish", name) for name in self._known) >= self._limits.channels:
            raise Conflict(
                f"channel {channel!r} does not exist, and the token covers {self._limits.channels} others; "
                "publish to one of them, or raise server.limits.channels"
            )

    async def check_consumer(self, caller: Caller, store: Backend, channel: str) -> None:
        """Raise `Conflict` where a channel has as many consumers as it may get."""
        if caller.may("admin"):
            return
        if len(await store.channels.consumers(channel)) >= self._limits.consumers:
            raise Conflict(
                f"channel {channel!r} has {self._limits.consumers} consumers; remove one, or raise "
                "server.limits.consumers"
            )

    def check_schedules(self, caller: Caller, channel: str, count: int) -> None:
        """Raise `Conflict` where a channel has as many schedules as it may get."""
        if not caller.may("admin") and count >= self._limits.schedules:
            raise Conflict(
                f"channel {channel!r} has {self._limits.schedules} schedules; remove one, or raise "
                "server.limits.schedules"
            )

    async def _channels(self) -> set[str]:
        """The channels of the stores that respond: publishing goes on without the others."""
        found: set[str] = set()
        for partition in self._partitions.all:
            if partition.usable:
                with suppress(Unavailable):
                    found.update(await partition.backend.channels.names())
        return found
