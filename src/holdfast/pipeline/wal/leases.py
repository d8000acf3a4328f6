"""Leases: who works on a batch, durable, so that others leave it alone for a while.

A lease only spares work. What keeps a batch from going in twice is the warehouse's ledger, which is written
in the same transaction as the rows: a holder that lost its lease and does not know it changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta

from holdfast.model.errors import Damaged, LeaseLost
from holdfast.pipeline.wal.journal import Journal
from holdfast.pipeline.wal.records import Lease

_LONG_AGO = datetime(1970, 1, 1, tzinfo=UTC)


class Hold:
    """A lease in use. Whoever works for long asks to keep it now and then."""

    def __init__(self, leases: Leases, lease: Lease) -> None:
        self._leases, self._lease = leases, lease

    @property
    def attempt(self) -> int:
        """The number of the attempt that it is for."""
        return self._lease.attempt

    def keep(self) -> None:
        """Extend it once it is half over; `LeaseLost` where another took it."""
        if self._leases.left(self._lease) < self._leases.duration / 2:
            self._lease = self._leases.extend(self._lease)

    def release(self) -> None:
        """Let others have it at once."""
        with suppress(LeaseLost):
            self._leases.release(self._lease)


class Leases:
    """The leases of one WAL."""

    def __init__(self, journal: Journal, clock: Callable[[], datetime], duration: timedelta) -> None:
        self._journal, self._clock, self.duration = journal, clock, duration

    def latest(self, batch: str) -> Lease | None:
        """The last one, which may be over."""
        numbers = list(self._journal.names(f"leases/{batch}"))
        if not numbers:
            return None
        try:
            return Lease.from_json(self._journal.read(f"leases/{batch}/{numbers[-1]}"))
        except Damaged:  # it only spared work: it counts as one that is over
            number = int(numbers[-1])
            return Lease(batch, number, number, "unreadable", _LONG_AGO, _LONG_AGO)

    def claim(self, batch: str, holder: str) -> Lease | None:
        """Take a batch that nobody holds, for one attempt; None where somebody does, or was faster."""
        now, last = self._clock(), self.latest(batch)
        if last is not None and last.until > now:
            return None
        number, attempt = (last.number + 1, last.attempt + 1) if last else (1, 1)
        return self._write(Lease(batch, number, attempt, holder, now, now + self.duration))

    def left(self, lease: Lease) -> timedelta:
        """How long it still lasts."""
        return lease.until - self._clock()

    def extend(self, lease: Lease) -> Lease:
        """Hold on to it for another duration from now; `LeaseLost` where another took it."""
        return self._follow(lease, self._clock() + self.duration)

    def release(self, lease: Lease) -> Lease:
        """Let others have it at once."""
        return self._follow(lease, self._clock())

    def _follow(self, lease: Lease, until: datetime) -> Lease:
        follower = Lease(lease.batch, lease.number + 1, lease.attempt, lease.holder, lease.taken_at, until)
        written = self._write(follower)
        if written is None:
            raise LeaseLost([lease.batch])
        return written

    def _write(self, lease: Lease) -> Lease | None:
        added = self._journal.add(f"leases/{lease.batch}/{lease.number:06}", lease.to_json())
        return lease if added else None
