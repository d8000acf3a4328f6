"""The log: batches and their states, as objects that are written once."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from typing import NamedTuple

from holdfast import failpoints
from holdfast.model.errors import Damaged, NotFound
from holdfast.pipeline.stores import ObjectStore
from holdfast.pipeline.wal.batch import Batch, Part, Segment
from holdfast.pipeline.wal.journal import Journal
from holdfast.pipeline.wal.leases import Leases
from holdfast.pipeline.wal.records import Acceptance, Attempt, Confirmation, Damage, Failure, GaveUp
from holdfast.pipeline.wal.settings import WalSettings

log = logging.getLogger(__name__)
Clock = Callable[[], datetime]
REST = "rest"


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
        self.journal = Journal(store)
        self.leases = Leases(self.journal, clock, settings.lease_duration)

    def commit(self, batch: Batch) -> Batch:
        """Make a batch pending: atomic, and durable when this returns. Returns the one that holds: whoever
        committed these positions before goes first, and what is staged again goes."""
        for segment in batch.segments:
            if self.store.size(segment.name) != segment.bytes:
                raise Damaged(f"segment {segment.name} is not as it was staged; read the batch again")
        failpoints.hit("wal.before_plan")
        self.journal.add(f"planned/{batch.name}", batch.plan())
        failpoints.hit("wal.before_pending")
        if not self.is_confirmed(batch.name) and self.journal.add(f"pending/{batch.name}", batch.to_json()):
            failpoints.hit("wal.after_pending")
            return batch
        try:
            standing = self.batch(batch.name)
        except (
            Damaged
        ) as damage:  # what is staged are the same events: they take the place of the damaged ones
            self.quarantine(batch.name, str(damage))
            self.repair(batch, batch.segments, "the log")
            return self.batch(batch.name)
        for segment in set(batch.segments) - set(standing.segments):
            self.store.delete(segment.name)
        return standing

    def batch(self, name: str) -> Batch:
        """One batch, with the segments that hold now."""
        repairs = list(self.journal.names(f"repairs/{name}"))
        body = self.journal.find(f"repairs/{name}/{repairs[-1]}" if repairs else f"pending/{name}")
        if body is None:
            body = self.journal.read(f"confirmed/{name}").get("batch", {})
        return _named(name, Batch.from_json(body))

    def parts(self, name: str) -> tuple[Part, ...]:
        """Which ranges a batch holds: from its record, or, where that is damaged or gone, from its plan.
        Raises what is wrong with the record where there is no sound plan, either."""
        try:
            return self.batch(name).parts
        except (Damaged, NotFound):
            with suppress(Damaged):
                if (plan := self.journal.find(f"planned/{name}")) is not None:
                    return _named(name, Batch.from_json(plan)).parts
            raise

    def rows(self, name: str) -> int:
        """How many events a batch has; 0 where that cannot be read."""
        try:
            return sum(part.rows for part in self.parts(name))
        except (Damaged, NotFound):
            return 0

    def survey(self) -> Survey:
        """Where every batch stands that is not confirmed. Reads names only."""
        failed = {
            name.removesuffix(f"/{REST}")
            for name in self.journal.names("failed")
            if name.endswith(f"/{REST}")
        }
        repaired = set(self.journal.names("repairs"))
        damaged = {
            name.rpartition("/")[0] for name in self.journal.names("quarantine") if name not in repaired
        }
        pending = {*self.journal.names("pending"), *(name.rpartition("/")[0] for name in repaired)}
        open_ = {name for name in pending | failed | damaged if not self.is_confirmed(name)}
        accepted = set(self.journal.names("lost"))
        waiting = pending & open_ - failed - damaged
        return Survey(sorted(waiting), failed & open_, damaged & open_ - accepted)

    def lost(self) -> list[str]:
        """Batches that were planned and have no other record: their drivers died before they were pending, or
        somebody removed the record since."""
        known = set(self.journal.names("pending"))
        known |= {name.rpartition("/")[0] for name in self.journal.names("quarantine")}
        planned = (name for name in self.journal.names("planned") if name not in known)
        return [name for name in planned if not self.is_confirmed(name)]

    def forget_plan(self, name: str) -> None:
        """Remove the plan of a batch that did not become pending. Nothing but the plan: a driver that lost
        its lock may make it pending at this very moment."""
        self.journal.remove(f"planned/{name}")

    def pending(self) -> list[Batch]:
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
        numbers = list(self.journal.names(f"attempts/{name}"))
        try:
            return Attempt.from_json(self.journal.read(f"attempts/{name}/{numbers[-1]}")) if numbers else None
        except Damaged as damage:  # it only says when to try again: now will do
            log.error("%s", damage)
            return None

    def attempts(self, name: str) -> list[Attempt]:
        """The failed attempts at a batch, oldest first."""
        folder = f"attempts/{name}"
        return [
            Attempt.from_json(self.journal.read(f"{folder}/{each}")) for each in self.journal.names(folder)
        ]

    def add_attempt(self, name: str, attempt: Attempt) -> bool:
        """Write down a failed attempt."""
        return self.journal.add(f"attempts/{name}/{attempt.number:06}", attempt.to_json())

    def confirm(self, batch: Batch, confirmation: Confirmation) -> bool:
        """pending → confirmed, with the batch's record in the confirmation. False where somebody did it
        before."""
        body = confirmation.to_json() | {"batch": batch.to_json()}
        done = self.journal.add(f"confirmed/{batch.name}", body)
        failpoints.hit("loader.after_confirm")
        self.close(batch.name)
        return done

    def close(self, name: str) -> None:
        """Remove what a confirmed batch needs no more, so that only what is pending has to be looked at."""
        for folder in ("pending", "planned"):
            self.journal.remove(f"{folder}/{name}")

    def is_confirmed(self, name: str) -> bool:
        """Whether the warehouse has it. Reads nothing."""
        return self.journal.has(f"confirmed/{name}")

    def confirmation(self, name: str) -> Confirmation | None:
        """How it was confirmed."""
        body = self.journal.find(f"confirmed/{name}")
        if body is None:
            return None
        return Confirmation.from_json({key: value for key, value in body.items() if key != "batch"})

    def fail(self, name: str, failure: Failure) -> bool:
        """One record of a batch → failed. False where it had failed before: with this batch, or with another
        one that holds the same place in the log, since two drivers have overlapped."""
        if not self._owns_failure(name, failure.name):
            self.journal.add(f"repeated/{name}/{failure.name}", {})
            return False
        done = self.journal.add(f"failed/{name}/{failure.name}", failure.to_json())
        failpoints.hit("loader.after_failed")
        return done

    def _owns_failure(self, name: str, failed: str) -> bool:
        """Whether a failure belongs to this batch: to the first one that asks. One whose record is damaged
        belongs to all that ask, lest it is nobody's."""
        if self.journal.add(f"owners/{failed}", {"batch": name}):
            return True
        try:
            return self.journal.read(f"owners/{failed}").get("batch") == name
        except Damaged:
            return True

    def give_up(self, name: str, gave_up: GaveUp) -> bool:
        """pending → failed, for all records that have not failed by themselves."""
        done = self.journal.add(f"failed/{name}/{REST}", gave_up.to_json())
        failpoints.hit("loader.after_failed")
        return done

    def left_out(self, name: str) -> list[str]:
        """The names of the records that do not go into the warehouse with a batch: they failed with it, or
        with another one."""
        return [*self.failed_names(name), *self.journal.names(f"repeated/{name}")]

    def failed_names(self, name: str) -> list[str]:
        """The names of the records that failed by themselves, without reading them."""
        return [each for each in self.journal.names(f"failed/{name}") if each != REST]

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
            return Failure.from_json(self.journal.read(f"failed/{name}/{failed}"))
        except Damaged as damage:
            return damage

    def gave_up(self, name: str) -> GaveUp | None:
        """Why the batch failed as a whole; None where it did not."""
        body = self.journal.find(f"failed/{name}/{REST}")
        return None if body is None else GaveUp.from_json(body)

    def quarantine(self, name: str, error: str) -> None:
        """Take a damaged batch out of service. Its files stay as they are."""
        number = sum(1 for _ in self.journal.names(f"repairs/{name}")) + 1
        self.journal.add(f"quarantine/{name}/{number:06}", Damage(self.clock(), error).to_json())

    def accept_loss(self, name: str, acceptance: Acceptance) -> bool:
        """A damaged batch that cannot be repaired is dealt with. False where somebody did it before."""
        return self.journal.add(f"lost/{name}", acceptance.to_json())

    def is_lost(self, name: str) -> bool:
        """Whether somebody accepted that a batch is lost."""
        return self.journal.has(f"lost/{name}")

    def damage(self, name: str) -> Damage | None:
        """What is wrong with a batch in quarantine."""
        numbers = list(self.journal.names(f"quarantine/{name}"))
        if not numbers or self.journal.has(f"repairs/{name}/{numbers[-1]}"):
            return None
        try:
            return Damage.from_json(self.journal.read(f"quarantine/{name}/{numbers[-1]}"))
        except Damaged as damage:
            return Damage(self.clock(), str(damage))

    def repair(self, batch: Batch, segments: tuple[Segment, ...], origin: str) -> bool:
        """quarantine → pending, with the same events staged anew; the record says from where, and when."""
        numbers = list(self.journal.names(f"quarantine/{batch.name}"))
        if not numbers:
            return False
        whole = Batch(batch.parts, segments, batch.created_at)
        record = whole.to_json() | {"repaired_from": origin, "repaired_at": self.clock().isoformat()}
        return self.journal.add(f"repairs/{batch.name}/{numbers[-1]}", record)


def _named(name: str, batch: Batch) -> Batch:
    if batch.name != name:
        raise Damaged(f"the record of batch {name} is that of {batch.name}; restore it from a copy")
    return batch
