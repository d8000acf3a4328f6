"""The census of the dead: their counts compared and made right, page by page, while others move jobs."""

from __future__ import annotations

from holdfast import failpoints
from holdfast.backends.redis.session import Session
from holdfast.model.deadletters import Drift, Fold
from holdfast.model.upkeep import Lock

_PAGE = 500

Wrong = tuple[bytes, int, int]
"""A reason or a fingerprint, how many were counted, how many there are."""


class Census:
    """Each page is fenced by the sweeper's lock. The counts need no folding: every transition moves them."""

    def __init__(self, session: Session) -> None:
        self._session = session

    async def fold(self, lock: Lock | None) -> Fold:
        """Count once what an older version, which knew no clusters, has buried."""
        if lock is None:
            return Fold(0)
        fence = (lock.name, lock.token)
        if await self._session.run("bootstrap", 0, *fence):
            return Fold(0)
        await self.recount(True, lock)
        return Fold(0, bootstrapped=not await self._session.run("bootstrap", 1, *fence))

    async def recount(self, repair: bool, lock: Lock) -> list[Drift]:
        """Every consumer's dead letters. A wrong count by fingerprint has that as its reason."""
        await self._session.run("fence", lock.name, lock.token)
        drifts: list[Drift] = []
        for ref, channel, consumer in await self._session.run("refs"):
            wrong = await self._reasons(ref, repair, lock) + await self._clusters(ref, repair, lock)
            names = channel.decode(), consumer.decode()
            drifts += [Drift(*names, what.decode(), counted, found) for what, counted, found in wrong]
        return sorted(drifts, key=lambda each: (each.channel, each.consumer, each.reason))

    async def _reasons(self, ref: bytes, repair: bool, lock: Lock) -> list[Wrong]:
        options = (_PAGE, int(repair), lock.name, lock.token)
        while (wrong := await self._session.run("recount", ref, *options)) is None:
            failpoints.hit("dead.mid_recount")
        return [(reason, counted, found) for reason, counted, found in wrong]

    async def _clusters(self, ref: bytes, repair: bool, lock: Lock) -> list[Wrong]:
        options = (_PAGE, int(repair), lock.name, lock.token)
        wrong: dict[bytes, Wrong] = {}  # a walk may come by twice
        cursor = b""
        while cursor != b"0":
            cursor, *rows = await self._session.run("resize", ref, cursor or b"0", *options)
            wrong |= {row[0]: (row[0], row[1], row[2]) for row in rows}
        return list(wrong.values())
