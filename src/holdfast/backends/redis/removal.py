"""Removal: the end of a worker consumer, in steps."""

from __future__ import annotations

from holdfast import failpoints
from holdfast.backends.redis.leases import no_consumer
from holdfast.backends.redis.session import Session
from holdfast.model.deadletters import Removal

_MOST = 250  # rows in one script: the server does nothing else meanwhile
_KEYS = 1_000  # keys that one script looks at on its walk
_SCRIPTS = 50  # in one step


class Removals:
    """Retires a consumer at once, and takes away what it has bit by bit."""

    def __init__(self, session: Session) -> None:
        self._session = session

    async def remove(self, channel: str, consumer: str, limit: int) -> Removal:
        """One step. Where the walk for its history finds little of it for long, a step takes less."""
        ref = await self._session.run("retire", channel, consumer)
        if ref is None:
            raise no_consumer(channel, consumer)
        failpoints.hit("remove.after_mark")
        jobs = dead = history = done = 0
        for _ in range(_SCRIPTS):
            left = max(limit, 1) - jobs - dead - history
            if done or not left:
                break
            some = await self._session.run("remove", ref, min(left, _MOST), _KEYS)
            jobs, dead, history, done = jobs + some[0], dead + some[1], history + some[2], some[3]
        failpoints.hit("remove.after_step")
        return Removal(jobs, dead, history, bool(done))
