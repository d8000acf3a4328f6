"""Dead letters: counts, clusters, pages of them, the moves out of dead, and the upkeep of the counts."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from holdfast import failpoints
from holdfast.backends.postgres import deadpages
from holdfast.backends.postgres.arrays import NumberArray
from holdfast.backends.postgres.locks import fencing
from holdfast.backends.postgres.operators import number, record
from holdfast.backends.postgres.queries import QUERIES
from holdfast.backends.postgres.session import Session
from holdfast.model.deadletters import Cluster, DeadCount, DeadFilter, DeadLetter, DeadPage, Drift, Fold
from holdfast.model.event import Event
from holdfast.model.upkeep import Lock

# Counting what is there reads every dead letter once.
_PATIENCE = 3600.0


class Dead:
    """Shows and moves what gave up."""

    def __init__(self, session: Session) -> None:
        self._session = session

    async def counts(self) -> list[DeadCount]:
        """By consumer and reason, from the summary and what waits to be folded."""
        return [DeadCount(*row) for row in await self._session.rows("dead_counts")]

    async def clusters(self, channel: str | None, consumer: str | None, limit: int) -> list[Cluster]:
        """By consumer and fingerprint, the largest first."""
        rows = await self._session.rows("clusters", channel=channel, consumer=consumer, limit=limit)
        return [_cluster(deadpages.letter(row), row[20]) for row in rows]

    async def page(self, wanted: DeadFilter, after: str | None, limit: int) -> DeadPage:
        """What a filter means, the latest death first."""
        return await deadpages.read(self._session, wanted, after, limit)

    async def letter(self, channel: str, consumer: str, job_id: str) -> DeadLetter | None:
        """One dead letter with its event."""
        seq = number(job_id)
        if seq is None:
            return None
        row = await self._session.row("dead_letter", channel=channel, consumer=consumer, seq=seq)
        return _whole(row) if row else None

    async def revive(
        self, channel: str, consumer: str, job_ids: Sequence[str], data: bytes | None
    ) -> list[bool]:
        """dead → ready, in one step."""
        answers = await self._move("revive", channel, consumer, job_ids, data=data)
        failpoints.hit("dead.after_revive")
        return answers

    async def purge(self, channel: str, consumer: str, job_ids: Sequence[str]) -> list[bool]:
        """dead → purged, in one step."""
        answers = await self._move("purge", channel, consumer, job_ids)
        failpoints.hit("dead.after_purge")
        return answers

    async def fold(self, fresh: timedelta, most: int, lock: Lock | None) -> Fold:
        """Fold deltas into the summary; count first where that was never done."""
        if lock is None:
            [(waiting,)] = await self._session.rows("would_fold_dead", fresh=fresh, most=most)
            return Fold(waiting)
        [row] = await self._patiently("fold_dead", fresh=fresh, most=most, **fencing(lock))
        return Fold(*row)

    async def recount(self, repair: bool, lock: Lock) -> list[Drift]:
        """Compare the counts with what is there. A wrong count by fingerprint has that as its reason."""
        rows = await self._patiently("recount_dead", repair=repair, **fencing(lock))
        return [Drift(*row) for row in rows]

    async def _move(
        self, query: str, channel: str, consumer: str, job_ids: Sequence[str], **more: Any
    ) -> list[bool]:
        seqs = [number(job_id) for job_id in job_ids]
        known = NumberArray([seq for seq in seqs if seq is not None])
        if not known:
            return [False] * len(seqs)
        rows = await self._session.rows(query, channel=channel, consumer=consumer, seqs=known, **more)
        moved = {seq for (seq,) in rows}
        return [seq in moved for seq in seqs]

    async def _patiently(self, query: str, **parameters: Any) -> list[tuple[Any, ...]]:
        async with self._session.connection(_PATIENCE) as connection:
            cursor = connection.cursor(binary=True)
            await cursor.execute(QUERIES[query], parameters)
            return await cursor.fetchall()


def _cluster(sample: DeadLetter, count: int) -> Cluster:
    return Cluster(sample.record.channel, sample.record.consumer, sample.fingerprint, count, sample)


def _whole(row: tuple[Any, ...]) -> DeadLetter:
    fingerprint, patch, data, *rest = row[19:]
    if data is None:
        return DeadLetter(record(row[:19]), fingerprint)
    event = Event(data if patch is None else patch, *rest)
    return DeadLetter(record(row[:19]), fingerprint, event, None if patch is None else data)
