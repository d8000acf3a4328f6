"""Redis as a backend: one session, and one object for each noun."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta

from holdfast.backends.redis import checks, keys
from holdfast.backends.redis.channels import Channels
from holdfast.backends.redis.codec import from_micros, to_micros
from holdfast.backends.redis.cursors import Cursors
from holdfast.backends.redis.deadletters import DeadLetters
from holdfast.backends.redis.groups import Groups
from holdfast.backends.redis.leases import Leases
from holdfast.backends.redis.lifecycle import Lifecycle
from holdfast.backends.redis.listener import RedisListener
from holdfast.backends.redis.locks import Locks
from holdfast.backends.redis.log import Log
from holdfast.backends.redis.records import Records
from holdfast.backends.redis.retention import Retention
from holdfast.backends.redis.session import Session
from holdfast.contracts import Capabilities, Finding
from holdfast.model.duration import parse_duration
from holdfast.model.errors import Duration

_MILLISECOND = timedelta(milliseconds=1)


class RedisBackend:
    """One Redis database.

    `dedupe_window` is how long an id is remembered after its publication, `history` how long the record of a
    job is kept after it was done, cancelled or discarded. Dead letters stay. Both are the store's: where they
    are not given, they stay what they are there, at first 14 and 7 days.
    """

    capabilities = Capabilities(foreign_groups=True)

    def __init__(
        self,
        url: str,
        *,
        connections: int = 4,
        dedupe_window: Duration | None = None,
        history: Duration | None = None,
    ) -> None:
        self.url = url
        self._kept = {"dedupe_window": dedupe_window, "history": history}
        settings = _milliseconds(history, "history"), _milliseconds(dedupe_window, "dedupe_window")
        self._session = Session(url, connections, *settings)
        self.log = Log(self._session)
        self.channels = Channels(self._session, self.log)
        self.leases = Leases(self._session)
        self.deadletters = DeadLetters(self._session)
        self.lifecycle = Lifecycle(self._session)
        self.cursors = Cursors(self._session, self.log)
        self.locks = Locks(self._session)
        self.retention = Retention(self._session, self.log)
        self.groups = Groups(self._session)
        self.records = Records(self._session)

    async def open(self) -> list[str]:
        await self._session.open()
        return []  # the scripts come with us, and the keys appear as they are needed

    async def close(self) -> None:
        await self._session.close()

    def fork(self) -> RedisBackend:
        return RedisBackend(self.url, connections=1, **self._kept)

    async def now(self) -> datetime:
        return from_micros(await self._session.run("store/now"))

    async def epoch(self) -> int:
        return int(await self._session.run("store/epoch"))

    async def advance(self, by: timedelta) -> None:
        await self._session.call("HINCRBY", keys.STORE, "offset", to_micros(by))

    async def check(self) -> list[Finding]:
        return await checks.check(self._session)

    async def listen(
        self,
        channels: Sequence[str],
        wake: Callable[[str], None],
        failed: Callable[[BaseException], None] = lambda _: None,
        cancelled: Callable[[str, str, str], None] = lambda *_: None,
    ) -> RedisListener:
        return RedisListener(self.url, channels, wake, failed, cancelled)


def _milliseconds(kept: Duration | None, what: str) -> int | None:
    return None if kept is None else max(parse_duration(kept, what=what) // _MILLISECOND, 1)
