"""Logins: how often somebody may try to sign in. Only tries that fail count."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable

from holdfast.server.auth.bucket import Buckets
from holdfast.server.auth.token import hash_of

_AT_ONCE, _RATE, _RATE_OF_ALL = 10, 1, 20
_KNOWN = 1_000
_TRIES = "tries to sign in"


class Logins:
    """The tries of each address, and of all, in this process. Whoever has signed in here lately waits for
    nobody: behind a proxy, somebody who guesses has the same address as everybody else."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._each = Buckets(_RATE, clock, at_once=_AT_ONCE, what=_TRIES)
        self._all = Buckets(_RATE_OF_ALL, clock, what=_TRIES)
        self._known: dict[str, bool] = {}

    async def attempt(
        self, address: str, secret: str, begin: Callable[[], Awaitable[str | None]]
    ) -> str | None:
        """What `begin` returns, a session or None; raises `TooManyRequests` before it is called."""
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
