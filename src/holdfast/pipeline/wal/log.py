"""The log: batches and their states, as objects that are written once, and leases on them.

A lease only spares work: others leave a batch alone for a while. What keeps a batch from going in twice is
the warehouse's ledger, which is written in the same transaction as the rows. A holder that lost its lease and
does not know it changes nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from holdfast import failpoints
from holdfast.model.duration import format_duration
from holdfast.model.errors import Damaged, InvalidInput, LeaseLost, NotFound
from holdfast.pipeline.stores import ObjectStore
from holdfast.pipeline.wal.batch import BatchPart, Segment, WalBatch
from holdfast.pipeline.wal.records import (
    Acceptance,
    Attempt,
    Confirmation,
    Damage,
    Failure,
    GaveUp,
    Lease,
    RecordStore,
)

log = logging.getLogger(__name__)
SHORTEST_LEASE = timedelta(seconds=30)
_LONG_AGO = datetime(1970, 1, 1, tzinfo=UTC)
Clock = Callable[[], datetime]
REST = "rest"


@dataclass(frozen=True, slots=True)
class WalSettings:
    """What `ingest.wal` of the configuration says, whatever it comes from."""

    path: str = ".holdfast/wal"
    """A folder or `s3://bucket/prefix`."""
    retry_interval: timedelta = timedelta(seconds=30)
    """How often the loader looks for batches that are due."""
    max_retries: int = 100
    """After so many failed attempts a batch has failed."""
    retry_backoff: timedelta = timedelta(seconds=5)
    """The wait after the first failure; it doubles."""
    max_backoff: timedelta = timedelta(minutes=5)
    """The longest wait."""
    entry_ttl: timedelta = timedelta(hours=168)
    """A batch that the warehouse did not take for so long has failed, with the reason `expired`."""
    close_timeout: timedelta = timedelta(seconds=30)
    """How long a loader that is told to stop gets to finish its batch."""
    lease_duration: timedelta = timedelta(minutes=2)
    """How long others leave a batch to a loader that is silent."""
    confirmed_retention: timedelta = timedelta(hours=24)
    """How long a confirmed batch is kept; a warehouse can be rebuilt from what is there."""
    max_bytes: int = 10 << 30
    """The ingest waits while so much is pending."""

    def __post_init__(self) -> None:
        if self.lease_duration < SHORTEST_LEASE:
            raise InvalidInput(
                f"a lease of {format_duration(self.lease_duration)} is too short; "
                f"use at least {format_duration(SHORTEST_LEASE)}"
            )
        if self.retry_backoff > self.max_backoff:
            raise InvalidInput(
                f"retry_backoff {format_duration(self.retry_backoff)} is longer than max_backoff "
                f"{format_duration(self.max_backoff)}; exchange them"
            )
        if self.max_retries < 1 or self.max_bytes < 1:
            raise InvalidInput("max_retries and max_bytes are counts from 1 on")


class HeldLease:
    """A lease in use. Whoever works for long must call `keep` now and then."""

    def __init__(self, leases: BatchLeases, lease: Lease) -> None:
        self._leases, self._lease = leases, lease

    @property
    def attempt(self) -> int:
        """The number of the attempt that it is for."""
        return self._lease.attempt

    def keep(self) -> None:
        """Extend it once it is half over. Raises `LeaseLost` where another took it."""
        if self._leases.left(self._lease) < self._leases.duration / 2:
            self._lease = self._leases.extend(self._lease)

    def release(self) -> None:
        """End it, so that others can claim the batch at once."""
        with suppress(LeaseLost):
            self._leases.release(self._lease)


class BatchLeases:
    """The leases of one WAL."""

    def __init__(self, records: RecordStore, clock: Callable[[], datetime], duration: timedelta) -> None:
        self._records, self._clock, self.duration = records, clock, duration

    def latest(self, batch: str) -> Lease | None:
        """The last lease on a batch, which may be over; None where there was none."""
        numbers = list(self._records.names(f"leases/{batch}"))
        if not numbers:
            return None
        try:
            return Lease.from_json(self._records.read(f"leases/{batch}/{numbers[-1]}"))
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
        """Extend it to a whole duration from now. Raises `LeaseLost` where another took it."""
        return self._follow(lease, self._clock() + self.duration)

    def release(self, lease: Lease) -> Lease:
        """End it, so that others can claim the batch at once."""
        return self._follow(lease, self._clock())

    def _follow(self, lease: Lease, until: datetime) -> Lease:
        follower = Lease(lease.batch, lease.number + 1, lease.attempt, lease.holder, lease.taken_at, until)
        written = self._write(follower)
        if written is None:
            raise LeaseLost([lease.batch])
        return written

    def _write(self, lease: Lease) -> Lease | None:
        added = self._records.add(f"leases/{lease.batch}/{lease.number:06}", lease.to_json())
        return lease if added else None


def machine_time() -> datetime:
    """This machine's clock.

    Times in the WAL only spare work and date records: a lease that ends too early lets two loaders try, and
    the warehouse's ledger accepts one; an expiry asks the warehouse first, and leaves a record to retry.
    So loading needs no clock of the store, and goes on while the store is down.
    """
    return datetime.now(UTC)


class Survey(NamedTuple):
    """The names of all batches that are not confirmed, by state."""

    pending: list[str]
    failed: set[str]
    quarantined: set[str]


class Wal:
    """One WAL. Many processes may use it at once."""

    def __init__(self, store: ObjectStore, settings: WalSettings, clock: Clock = machine_time) -> None:
        self.store, self.settings, self.clock = store, settings, clock
        self.records = RecordStore(store)
        self.leases = BatchLeases(self.records, clock, settings.lease_duration)

    def commit(self, batch: WalBatch) -> WalBatch:
        """Make a batch pending: atomic, and durable when this returns. Returns the batch that holds: where
        these positions were committed before, that one, and what was staged again is removed."""
        for segment in batch.segments:
            if self.store.size(segment.name) != segment.bytes:
                raise Damaged(f"segment {segment.name} is not as it was staged; read the batch again")
        failpoints.hit("wal.before_plan")
        self.records.add(f"planned/{batch.name}", batch.plan())
        failpoints.hit("wal.before_pending")
        if not self.is_confirmed(batch.name) and self.records.add(f"pending/{batch.name}", batch.to_json()):
            failpoints.hit("wal.after_pending")
            return batch
        try:
            committed = self.batch(batch.name)
        except Damaged as damage:
            # What is staged are the same events: they take the place of the damaged ones.
            self.quarantine(batch.name, str(damage))
            self.repair(batch, batch.segments, "the log")
            return self.batch(batch.name)
        for segment in set(batch.segments) - set(committed.segments):
            self.store.delete(segment.name)
        return committed

    def batch(self, name: str) -> WalBatch:
        """One batch, with its current segments. Raises `NotFound` or `Damaged`."""
        repairs = list(self.records.names(f"repairs/{name}"))
        body = self.records.find(f"repairs/{name}/{repairs[-1]}" if repairs else f"pending/{name}")
        if body is None:
            body = self.records.read(f"confirmed/{name}").get("batch", {})
        return _named(name, WalBatch.from_json(body))

    def parts(self, name: str) -> tuple[BatchPart, ...]:
        """The ranges of a batch: from its record, or, where that is damaged or gone, from its plan, or from
        what put it into quarantine. Raises what is wrong with the record where none of them says."""
        try:
            return self.batch(name).parts
        except (Damaged, NotFound):
            with suppress(Damaged):
                if (plan := self.records.find(f"planned/{name}")) is not None:
                    return _named(name, WalBatch.from_json(plan)).parts
            for each in self.records.names(f"quarantine/{name}"):
                with suppress(Damaged):
                    if plan := self.records.read(f"quarantine/{name}/{each}").get("plan"):
                        return _named(name, WalBatch.from_json(plan)).parts
            raise

    def channels(self, name: str) -> tuple[str, ...]:
        """The channels of a batch; none where that cannot be read."""
        try:
            return tuple(sorted({part.channel for part in self.parts(name)}))
        except (Damaged, NotFound):
            return ()

    def rows(self, name: str) -> int:
        """How many events a batch has; 0 where that cannot be read."""
        try:
            return sum(part.rows for part in self.parts(name))
        except (Damaged, NotFound):
            return 0

    def survey(self) -> Survey:
        """The states of all batches that are not confirmed. Reads names only."""
        failed = {
            name.removesuffix(f"/{REST}")
            for name in self.records.names("failed")
            if name.endswith(f"/{REST}")
        }
        repaired = set(self.records.names("repairs"))
        damaged = {
            name.rpartition("/")[0] for name in self.records.names("quarantine") if name not in repaired
        }
        pending = {*self.records.names("pending"), *(name.rpartition("/")[0] for name in repaired)}
        open_ = {name for name in pending | failed | damaged if not self.is_confirmed(name)}
        accepted = set(self.records.names("lost"))
        waiting = pending & open_ - failed - damaged
        return Survey(sorted(waiting), failed & open_, damaged & open_ - accepted)

    def lost(self) -> list[str]:
        """Batches that were planned and have no other record: their drivers died before they were pending, or
        somebody removed the record since."""
        known = set(self.records.names("pending"))
        known |= {name.rpartition("/")[0] for name in self.records.names("quarantine")}
        planned = (name for name in self.records.names("planned") if name not in known)
        return [name for name in planned if not self.is_confirmed(name)]

    def forget_plan(self, name: str) -> None:
        """Remove the plan of a batch that did not become pending. Nothing but the plan: a driver that lost
        its lock may make it pending at this very moment."""
        self.records.remove(f"planned/{name}")

    def pending(self) -> list[WalBatch]:
        """Every batch that waits for the warehouse, the oldest first. One whose record is damaged is
        quarantined here."""
        found = []
        for name in self.survey().pending:
            try:
                found.append(self.batch(name))
            except Damaged as damage:
                self.quarantine(name, str(damage))
            except NotFound:  # confirmed and cleaned up meanwhile
                continue
        return sorted(found, key=lambda batch: (batch.created_at, batch.ranges))

    def last_attempt(self, name: str) -> Attempt | None:
        """The last failed attempt at a batch."""
        numbers = list(self.records.names(f"attempts/{name}"))
        try:
            return Attempt.from_json(self.records.read(f"attempts/{name}/{numbers[-1]}")) if numbers else None
        except Damaged as damage:  # it only says when to try again: now will do
            log.error("%s", damage)
            return None

    def attempts(self, name: str) -> list[Attempt]:
        """The failed attempts at a batch, oldest first."""
        folder = f"attempts/{name}"
        return [
            Attempt.from_json(self.records.read(f"{folder}/{each}")) for each in self.records.names(folder)
        ]

    def add_attempt(self, name: str, attempt: Attempt) -> bool:
        """Record a failed attempt. False where that number is recorded already."""
        return self.records.add(f"attempts/{name}/{attempt.number:06}", attempt.to_json())

    def confirm(self, batch: WalBatch, confirmation: Confirmation) -> bool:
        """pending → confirmed, with the batch's record in the confirmation. False where somebody did it
        before."""
        body = confirmation.to_json() | {"batch": batch.to_json()}
        done = self.records.add(f"confirmed/{batch.name}", body)
        failpoints.hit("loader.after_confirm")
        self.close(batch.name)
        return done

    def close(self, name: str) -> None:
        """Remove what a confirmed batch needs no more, so that only pending batches have to be listed."""
        for folder in ("pending", "planned"):
            self.records.remove(f"{folder}/{name}")

    def is_confirmed(self, name: str) -> bool:
        """Whether the warehouse has it. Reads nothing."""
        return self.records.has(f"confirmed/{name}")

    def confirmation(self, name: str) -> Confirmation | None:
        """How it was confirmed."""
        body = self.records.find(f"confirmed/{name}")
        if body is None:
            return None
        return Confirmation.from_json({key: value for key, value in body.items() if key != "batch"})

    def fail(self, name: str, failure: Failure) -> bool:
        """One record of a batch → failed. False where it had failed before: with this batch, or with another
        one that holds the same place in the log, since two drivers have overlapped."""
        if not self._owns_failure(name, failure.name):
            self.records.add(f"repeated/{name}/{failure.name}", {})
            return False
        done = self.records.add(f"failed/{name}/{failure.name}", failure.to_json())
        failpoints.hit("loader.after_failed")
        return done

    def _owns_failure(self, name: str, failed: str) -> bool:
        """Whether a failure belongs to this batch: to the first one that asks. One whose record is damaged
        belongs to all that ask, lest it is nobody's."""
        if self.records.add(f"owners/{failed}", {"batch": name}):
            return True
        try:
            return self.records.read(f"owners/{failed}").get("batch") == name
        except Damaged:
            return True

    def give_up(self, name: str, gave_up: GaveUp) -> bool:
        """pending → failed, for all records that have not failed by themselves."""
        done = self.records.add(f"failed/{name}/{REST}", gave_up.to_json())
        failpoints.hit("loader.after_failed")
        return done

    def left_out(self, name: str) -> list[str]:
        """The names of the records that do not go into the warehouse with a batch: they failed with it, or
        with another one."""
        return [*self.failed_names(name), *self.records.names(f"repeated/{name}")]

    def failed_names(self, name: str) -> list[str]:
        """The names of the records that failed by themselves, without reading them."""
        return [each for each in self.records.names(f"failed/{name}") if each != REST]

    def failures(self, name: str) -> list[Failure]:
        """The records of a batch that failed by themselves. One that is damaged is named in the log."""
        found: list[Failure] = []
        for each in self.failed_names(name):
            match self.read_failure(name, each):
                case Failure() as failure:
                    found.append(failure)
                case damage:
                    log.error("%s", damage)
        return found

    def read_failure(self, name: str, failed: str) -> Failure | Damaged:
        """One record of a batch that failed by itself, or what is wrong with it."""
        try:
            return Failure.from_json(self.records.read(f"failed/{name}/{failed}"))
        except Damaged as damage:
            return damage

    def gave_up(self, name: str) -> GaveUp | None:
        """Why the batch failed as a whole; None where it did not."""
        body = self.records.find(f"failed/{name}/{REST}")
        return None if body is None else GaveUp.from_json(body)

    def quarantine(self, name: str, error: str, parts: tuple[BatchPart, ...] = ()) -> None:
        """Take a damaged batch out of service. Its files stay as they are. `parts` are its ranges, where
        nothing but a plan tells them."""
        number = sum(1 for _ in self.records.names(f"repairs/{name}")) + 1
        now = self.clock()
        damage = Damage(now, error, WalBatch(parts, (), now).plan() if parts else None)
        self.records.add(f"quarantine/{name}/{number:06}", damage.to_json())

    def accept_loss(self, name: str, acceptance: Acceptance) -> bool:
        """A damaged batch that cannot be repaired is dealt with. False where somebody did it before."""
        return self.records.add(f"lost/{name}", acceptance.to_json())

    def is_lost(self, name: str) -> bool:
        """Whether somebody accepted that a batch is lost."""
        return self.records.has(f"lost/{name}")

    def damage(self, name: str) -> Damage | None:
        """What is wrong with a batch in quarantine."""
        numbers = list(self.records.names(f"quarantine/{name}"))
        if not numbers or self.records.has(f"repairs/{name}/{numbers[-1]}"):
            return None
        try:
            return Damage.from_json(self.records.read(f"quarantine/{name}/{numbers[-1]}"))
        except Damaged as damage:
            return Damage(self.clock(), str(damage))

    def repair(self, batch: WalBatch, segments: tuple[Segment, ...], origin: str) -> bool:
        """quarantine → pending, with the same events staged anew; the record says from where, and when."""
        numbers = list(self.records.names(f"quarantine/{batch.name}"))
        if not numbers:
            return False
        whole = WalBatch(batch.parts, segments, batch.created_at)
        record = whole.to_json() | {"repaired_from": origin, "repaired_at": self.clock().isoformat()}
        return self.records.add(f"repairs/{batch.name}/{numbers[-1]}", record)


def _named(name: str, batch: WalBatch) -> WalBatch:
    if batch.name != name:
        raise Damaged(f"the record of batch {name} is that of {batch.name}; restore it from a copy")
    return batch
