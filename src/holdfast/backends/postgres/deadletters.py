"""Dead letters: counts, clusters, pages of them, the moves out of dead, and the upkeep of the counts."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from holdfast import failpoints
from holdfast.backends.postgres.arrays import NumberArray
from holdfast.backends.postgres.leases import number, record
from holdfast.backends.postgres.locks import fencing
from holdfast.backends.postgres.queries import QUERIES
from holdfast.backends.postgres.session import Session
from holdfast.model.deadletters import Cluster, DeadCount, DeadFilter, DeadLetter, DeadPage, Drift, Fold
from holdfast.model.errors import InvalidInput
from holdfast.model.event import Event
from holdfast.model.upkeep import Lock

# Counting what is there reads every dead letter once.
_PATIENCE = 3600.0
# Pages: keyset pagination over (time of death, consumer, number), the latest first.
_SCANNED = 2000
_STEP = 500
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_AFTER = re.compile(r"[0-9a-f]{14}-[0-7][0-9a-f]{7}-[0-7][0-9a-f]{15}")


class _Death(NamedTuple):
    """A death that was shown, or a time: what follows died before it."""

    died_at: datetime | None = None
    consumer_id: int = 0
    seq: int = 0


class DeadLetters:
    """Shows and moves what gave up."""

    def __init__(self, session: Session) -> None:
        self._session = session

    async def counts(self) -> list[DeadCount]:
        return [DeadCount(*row) for row in await self._session.rows("dead_counts")]

    async def clusters(self, channel: str | None, consumer: str | None, limit: int) -> list[Cluster]:
        rows = await self._session.rows("clusters", channel=channel, consumer=consumer, limit=limit)
        return [_cluster(_letter(row), row[19]) for row in rows]

    async def page(self, wanted: DeadFilter, after: str | None, limit: int) -> DeadPage:
        # An index finds the consumer, the time, and the fingerprint or else the reason; for the rest dead
        # letters are looked through, up to a bound.
        death = _before(wanted.until, _parse(after))
        named = (wanted.channel, wanted.consumer, wanted.reason, wanted.fingerprint)
        if any("\x00" in (name or "") for name in named):  # no text of the server's has that
            return DeadPage([], None)
        letters: list[DeadLetter] = []
        step = limit if _indexed(wanted) else _STEP
        for _ in range(0, _SCANNED, _STEP):
            rows = await self._session.rows("dead_page", **_parameters(wanted, death), limit=step + 1)
            for row in rows[:step]:
                death = _Death(row[14], row[19], row[0])
                if wanted.holds(found := _letter(row)):
                    letters.append(found)
                if len(letters) == limit:
                    more = row is not rows[-1]
                    return DeadPage(letters, _format(death) if more else None)
            if len(rows) <= step:
                return DeadPage(letters, None)
        return DeadPage(letters, _format(death))

    async def letter(self, channel: str, consumer: str, job_id: str) -> DeadLetter | None:
        seq = number(job_id)
        if seq is None:
            return None
        row = await self._session.row("dead_letter", channel=channel, consumer=consumer, seq=seq)
        return _whole(row) if row else None

    async def revive(
        self, channel: str, consumer: str, job_ids: Sequence[str], data: bytes | None = None
    ) -> list[bool]:
        answers = await self._move("revive", channel, consumer, job_ids, data=data)
        failpoints.hit("dead.after_revive")
        return answers

    async def purge(self, channel: str, consumer: str, job_ids: Sequence[str]) -> list[bool]:
        answers = await self._move("purge", channel, consumer, job_ids)
        failpoints.hit("dead.after_purge")
        return answers

    async def fold(self, fresh: timedelta, most: int, lock: Lock | None) -> Fold:
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
    fingerprint, patch, data, *rest = row[18:]
    if data is None:
        return DeadLetter(record(row[:18]), fingerprint)
    event = Event(data if patch is None else patch, *rest)
    return DeadLetter(record(row[:18]), fingerprint, event, None if patch is None else data)


def _letter(row: tuple[Any, ...]) -> DeadLetter:
    """A dead letter without its event."""
    return DeadLetter(record(row[:18]), row[18])


def _indexed(wanted: DeadFilter) -> bool:
    """Whether an index finds exactly what is meant."""
    one = wanted.reason is None or wanted.fingerprint is None
    return one and wanted.kind is None and wanted.text is None


def _parameters(wanted: DeadFilter, death: _Death) -> dict[str, Any]:
    return death._asdict() | {
        "channel": wanted.channel,
        "consumer": wanted.consumer,
        "reason": wanted.reason,
        "fingerprint": wanted.fingerprint,
        "since": wanted.since,
    }


def _before(until: datetime | None, death: _Death) -> _Death:
    if until is None or (death.died_at is not None and death.died_at < until):
        return death
    return _Death(until)


def _format(death: _Death) -> str:
    assert death.died_at is not None  # noqa: S101 - it was shown
    died = (death.died_at - _EPOCH) // timedelta(microseconds=1)
    return f"{died:014x}-{death.consumer_id:08x}-{death.seq:016x}"


def _parse(after: str | None) -> _Death:
    if after is None:
        return _Death()
    if not _AFTER.fullmatch(after):
        raise InvalidInput(f"after {after!r} is no death in a list of dead letters; use the one of a page")
    died, consumer_id, seq = (int(field, 16) for field in after.split("-"))
    return _Death(_EPOCH + timedelta(microseconds=died), consumer_id, seq)
