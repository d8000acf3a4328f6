"""Dead letters: how many there are, each one with its story, and the ways out of dead."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from holdfast import failpoints
from holdfast.backends.redis.codec import decode, named, pairs, patched
from holdfast.backends.redis.link import Argument
from holdfast.backends.redis.operators import is_id, record_of
from holdfast.backends.redis.session import Session
from holdfast.model.deadletters import Cluster, DeadCount, DeadLetter
from holdfast.model.errors import TooLarge

MOST = 1_000
"""How many jobs can move in one step: the server does nothing else meanwhile."""
_PART = 200  # views in one answer, each with every attempt's error
_ONE = ord("1")
_REASON = "dead:"


class Dead:
    """Jobs that gave up."""

    def __init__(self, session: Session) -> None:
        self._session = session

    async def counts(self) -> list[DeadCount]:
        """By consumer and reason, from counters that move with every transition."""
        found = [
            DeadCount(channel.decode(), consumer.decode(), name.removeprefix(_REASON), int(count))
            for channel, consumer, flat in await self._session.run("dead_counts")
            for name, count in pairs(flat).items()
            if name.startswith(_REASON) and int(count)
        ]
        return sorted(found, key=lambda each: (each.channel, each.consumer, each.reason))

    async def clusters(self, channel: str | None, consumer: str | None, limit: int) -> list[Cluster]:
        """The largest first. Each is read again with its sample, so that the two belong together."""
        largest = [
            (-int(size), int(ref), fingerprint)
            for ref, flat in await self._session.run("clusters", named(channel), named(consumer), limit)
            for fingerprint, size in zip(flat[::2], flat[1::2], strict=True)
        ]
        chosen = [(ref, fingerprint) for _, ref, fingerprint in sorted(largest)[:limit]]
        found = [
            _cluster(*row) for part in split(chosen) for row in await self._session.run("samples", *part)
        ]
        return sorted(found, key=lambda each: -each.count)

    async def letters(self, places: Sequence[tuple[int, bytes]]) -> list[DeadLetter | None]:
        """The dead letters of these consumers and ids, without their events; None for what is not dead."""
        return [
            None if row is None else letter_of(row)
            for part in split(places)
            for row in await self._session.run("dead_rows", *part)
        ]

    async def letter(self, channel: str, consumer: str, job_id: str) -> DeadLetter | None:
        """One with its event, as it was kept or as the log has it."""
        if not is_id(job_id):
            return None
        answer = await self._session.run("dead_letter", f"{channel}/{consumer}", job_id)
        if answer is None:
            return None
        row, entry, patch = answer
        if entry is None:  # another client removed it before the job died
            return letter_of(row)
        event = decode(job_id.encode(), entry)
        original = None if patch is None else event.data
        letter = letter_of(row)
        return DeadLetter(letter.record, letter.fingerprint, patched(event, patch), original)

    async def revive(
        self, channel: str, consumer: str, job_ids: Sequence[str], data: bytes | None
    ) -> list[bool]:
        """dead → ready."""
        patch = b"" if data is None else b"=" + data
        revived = await self._move("revive", job_ids, f"{channel}/{consumer}", patch)
        failpoints.hit("dead.after_revive")
        return revived

    async def purge(self, channel: str, consumer: str, job_ids: Sequence[str]) -> list[bool]:
        """dead → purged."""
        purged = await self._move("purge", job_ids, f"{channel}/{consumer}")
        failpoints.hit("dead.after_purge")
        return purged

    async def _move(self, script: str, job_ids: Sequence[str], *options: Argument) -> list[bool]:
        if len(job_ids) > MOST:
            raise TooLarge(f"{len(job_ids)} jobs in one step; the limit is {MOST}")
        known = [job_id for job_id in job_ids if is_id(job_id)]
        digits = iter(await self._session.run(script, *options, *known) if known else b"")
        return [is_id(job_id) and next(digits) == _ONE for job_id in job_ids]


def split(rows: Sequence[tuple[Argument, ...]]) -> Iterator[list[Argument]]:
    """As many rows as one script should show at a time, flat."""
    for start in range(0, len(rows), _PART):
        yield [value for row in rows[start : start + _PART] for value in row]


def letter_of(row: Sequence[Any]) -> DeadLetter:
    """A dead letter as a script shows it."""
    return DeadLetter(record_of(*row), pairs(row[-1]).get("fingerprint", b"").decode())


def _cluster(fingerprint: bytes, size: bytes, row: Sequence[Any]) -> Cluster:
    sample = letter_of(row)
    return Cluster(sample.record.channel, sample.record.consumer, fingerprint.decode(), int(size), sample)
