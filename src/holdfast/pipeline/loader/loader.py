"""The loader: takes pending batches from the WAL to the warehouse, and confirms or fails them.

It may die anywhere. The ledger in the warehouse says whether a batch went in, so that whoever comes next
goes on from there: a batch is loaded, confirmed or failed once, however often it is tried.
"""

from __future__ import annotations

import logging
import os
import random
import secrets
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from typing import Any, NamedTuple, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from holdfast import failpoints
from holdfast.correlation import correlated
from holdfast.model.errors import Damaged, LeaseLost, Terminal, Transient
from holdfast.pipeline.failed.failures import failure_of
from holdfast.pipeline.failed.service import FailedEvents
from holdfast.pipeline.loader.decisions import (
    CONFLICT,
    CONSUMER_WAL,
    EXPIRED,
    INVALID,
    REJECTED,
    VALIDATION,
    Decision,
    GiveUp,
    Recovery,
    Result,
    TryLater,
    backoff,
    decide,
    groups,
    isolate,
    recovery,
)
from holdfast.pipeline.stores import cloud_environment
from holdfast.pipeline.wal import Wal, WalBatch, segments
from holdfast.pipeline.wal.batch import failed_id
from holdfast.pipeline.wal.log import HeldLease
from holdfast.pipeline.wal.records import Attempt, Confirmation, GaveUp
from holdfast.pipeline.wal.segments import StoredRows, healthy, rows_named
from holdfast.pipeline.warehouse import Load, LoadOutcome, Warehouse, loads

T = TypeVar("T")
log = logging.getLogger(__name__)
Watch = Callable[[WalBatch, Result], None]
WRITERS = 16
"""Failed records that are written at once: each is an object of its own."""
_SHOWN = 5
"""Parts of a batch that a log line names."""


class Rejects:
    """The records of one batch that cannot go in, while a loader holds it. They fail in the WAL; the
    warehouse is told of them later."""

    def __init__(self, wal: Wal, warehouse: Warehouse, batch: WalBatch, hold: HeldLease) -> None:
        self._wal, self._warehouse, self._batch, self._hold = wal, warehouse, batch, hold

    def invalid(self, rows: pa.Table) -> pa.Table:
        """Fail the rows that validation refused; returns the others."""
        valid = pc.is_null(rows["problem"])
        invalid = rows.filter(pc.invert(valid)).to_pylist()
        self._fail([(row, row["problem"]) for row in invalid], INVALID)
        return rows.filter(valid) if invalid else rows

    def poison(self, rows: pa.Table) -> bool:
        """Find the rows that the warehouse does not take, and fail each as it is found; returns whether there
        were any."""
        rehearse, found = self._warehouse.rehearse, False
        try:
            rehearse(rows)
        except Terminal as error:
            for row, reason in isolate(rows, error, rehearse):
                self._fail([(row.to_pylist()[0], str(reason))], REJECTED)
                found = True
        return found

    def conflicts(self, names: Sequence[str]) -> None:
        """Fail the rows whose ids the warehouse holds with other content."""
        if names:
            rows = rows_named(segments.read_all(self._wal.store, self._batch.segments), names)
            error = "the warehouse holds this id with other content"
            self._fail([(row, error) for row in rows.to_pylist()], CONFLICT)

    def _fail(self, rows: Sequence[tuple[dict[str, Any], str]], reason: str) -> None:
        """Rows → failed, several at once. Raises `LeaseLost` between them where another took the batch."""
        write = partial(self._write, reason)
        with ThreadPoolExecutor(WRITERS) as pool:
            for at in range(0, len(rows), WRITERS):
                list(pool.map(write, rows[at : at + WRITERS]))
                self._hold.keep()

    def _write(self, reason: str, rejected: tuple[dict[str, Any], str]) -> None:
        row, error = rejected
        failure = failure_of(
            row,
            created_at=self._batch.created_at,
            failed_at=self._wal.clock(),
            reason=reason,
            layer=VALIDATION if reason == INVALID else self._warehouse.layer,
            error=error,
            attempts=self._hold.attempt,
        )
        if self._wal.fail(self._batch.name, failure):
            log.error(
                "event %s of %s failed for good: reason %s in %s at attempt %s: %s "
                "(failed event %s, transaction %s, source %s, type %s, partition %s, position %s, batch %s)",
                *(failure.id, failure.channel, reason, failure.layer, failure.attempts, error),
                *(failed_id(self._batch.name, failure.name), failure.transaction_id, failure.source),
                *(failure.type, failure.partition, failure.position, self._batch.name),
            )


class ReadyBatch(NamedTuple):
    """A batch under lease, with what is to go in."""

    batch: WalBatch
    hold: HeldLease
    load: Load


class Loader:
    """One loader. Several may work on one WAL."""

    def __init__(
        self,
        wal: Wal,
        warehouse: Warehouse,
        *,
        holder: str | None = None,
        watch: Watch = lambda batch, result: None,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self.wal, self.warehouse = wal, warehouse
        self.holder = holder or f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"
        self._watch, self._chance = watch, chance

    def run_once(self, *, at_once: bool = False) -> list[tuple[WalBatch, Result]]:
        """Try every pending batch that is due; with `at_once`, also those that wait after a failure."""
        return self.load(self.wal.pending(), at_once=at_once)

    def recover(self) -> Recovery:
        """Try every pending batch after a start; returns what became of them, in entries."""
        began = time.monotonic()
        results = self.run_once(at_once=True)
        found = recovery(results, timedelta(seconds=time.monotonic() - began))
        log.info("recovered the WAL %s: %s", self.wal.store.url, found)
        return found

    def load(self, batches: Sequence[WalBatch], *, at_once: bool = False) -> list[tuple[WalBatch, Result]]:
        """Load batches, as many in one transaction of the warehouse as its memory allows; returns the result
        of each."""
        found: list[tuple[WalBatch, Result]] = []
        for group in groups(batches):
            results = self._load(group, at_once)
            for batch in group:
                result = results[batch.name]
                if result not in (Result.LOADED, Result.WAITING):
                    with correlated(batch=batch.name):
                        log.warning("batch %s of %s events: %s", batch.name, batch.rows, result)
                self._watch(batch, result)
                found.append((batch, result))
        return found

    def _load(self, group: Sequence[WalBatch], at_once: bool) -> dict[str, Result]:
        results: dict[str, Result] = {}
        ready: list[ReadyBatch] = []
        for batch in group:
            with correlated(batch=batch.name):
                match self._prepare(batch, at_once):
                    case ReadyBatch() as each:
                        ready.append(each)
                    case Result() as result:
                        results[batch.name] = result
        return results | (self._put(ready) if ready else {})

    def _prepare(self, batch: WalBatch, at_once: bool) -> ReadyBatch | Result:
        wal, name = self.wal, batch.name
        made = wal.leases.latest(name)
        attempts = made.attempt if made else 0
        decision = decide(wal.clock(), batch.created_at, attempts, wal.last_attempt(name), wal.settings)
        if isinstance(decision, TryLater) and not at_once:
            return Result.WAITING
        lease = wal.leases.claim(name, self.holder)
        if lease is None:
            return Result.HELD
        failpoints.hit("loader.after_lease")
        hold = HeldLease(wal.leases, lease)
        return self._guarded(batch, hold, partial(self._read, batch, hold, decision))

    def _guarded(self, batch: WalBatch, hold: HeldLease, step: Callable[[], T]) -> T | Result:
        """What a step with one batch returns, or the result that its failure means."""
        try:
            return step()
        except LeaseLost:
            return Result.HELD
        except Damaged as damage:
            self.wal.quarantine(batch.name, str(damage))
            hold.release()
            return Result.QUARANTINED
        except Exception as error:
            self._retry_later(batch, hold, error)
            return Result.RETRY

    def _read(self, batch: WalBatch, hold: HeldLease, decision: Decision) -> ReadyBatch | Result:
        if self.wal.is_confirmed(batch.name):
            return Result.ALREADY
        if isinstance(decision, GiveUp):
            return self._give_up(batch, hold, decision.reason)
        # Nobody can have loaded what nobody has tried.
        known = self.warehouse.outcome(batch.name, batch.channels) if hold.attempt > 1 else None
        if known is not None:
            return self._conclude(batch, hold, known, again=True)
        return ReadyBatch(batch, hold, Load(batch.name, batch.channels, self._rows(batch, hold)))

    def _rows(self, batch: WalBatch, hold: HeldLease) -> pa.Table | StoredRows:
        """What is to go in. Of a large batch only the segments with invalid rows are read here, where the
        warehouse reads segments itself."""
        wal, rejects = self.wal, Rejects(self.wal, self.warehouse, batch, hold)
        if not self.warehouse.reads_segments or batch.bytes < loads.TASK_BYTES:
            rows = healthy(wal, batch.name, segments.read_all(wal.store, batch.segments))
            return rejects.invalid(rows)
        invalid = [segment for segment in batch.segments if segment.invalid != 0]
        if invalid:
            rejects.invalid(healthy(wal, batch.name, segments.read_all(wal.store, invalid)))
        failed = frozenset(wal.left_out(batch.name))
        return StoredRows(wal.store.url, batch.segments, failed, environment=cloud_environment())

    def _put(self, ready: Sequence[ReadyBatch]) -> dict[str, Result]:
        """All of them in one transaction; each by itself where a row of one cannot go in."""
        try:
            outcomes = self.warehouse.load([each.load for each in ready])
        except (Terminal, Damaged) as error:
            results: dict[str, Result] = {}
            for each in ready:
                alone = partial(self._put_alone, each, error if len(ready) == 1 else None)
                results[each.batch.name] = self._guarded(each.batch, each.hold, alone)
            return results
        except Exception as error:
            for each in ready:
                self._retry_later(each.batch, each.hold, error)
            return {each.batch.name: Result.RETRY for each in ready}
        return {
            each.batch.name: self._guarded(
                each.batch, each.hold, partial(self._conclude, each.batch, each.hold, outcome)
            )
            for each, outcome in zip(ready, outcomes, strict=True)
        }

    def _put_alone(self, ready: ReadyBatch, error: Terminal | Damaged | None) -> Result:
        """One batch without the rows that cannot go in. `error` is the one that it failed with alone."""
        batch, hold = ready.batch, ready.hold
        load = ready.load._replace(rows=ready.load.table)
        if error is None:
            hold.keep()
            try:
                return self._conclude(batch, hold, self.warehouse.load([load])[0])
            except Terminal as found:
                error = found
        if not Rejects(self.wal, self.warehouse, batch, hold).poison(load.table):
            raise error  # it is not the data: try again
        [outcome] = self.warehouse.load([load._replace(rows=healthy(self.wal, batch.name, load.table))])
        return self._conclude(batch, hold, outcome)

    def _conclude(
        self, batch: WalBatch, hold: HeldLease, outcome: LoadOutcome, *, again: bool = False
    ) -> Result:
        """Confirm the batch, or fail it, as the warehouse's ledger says."""
        if outcome.refused is not None:
            return self._give_up(batch, hold, outcome.refused)
        Rejects(self.wal, self.warehouse, batch, hold).conflicts(outcome.conflicts)
        failed = len(self.wal.left_out(batch.name))
        counts = (batch.rows, outcome.inserted, outcome.duplicates, failed)
        self.wal.confirm(batch, Confirmation(self.wal.clock(), self.holder, *counts))
        return Result.ALREADY if again else Result.LOADED

    def _give_up(self, batch: WalBatch, hold: HeldLease, reason: str) -> Result:
        """Fail the batch, after the ledger was told: a loader that is late is then refused."""
        outcome = self.warehouse.refuse(batch.name, batch.channels, reason)
        if outcome.refused is None:
            return self._conclude(batch, hold, outcome, again=True)
        last = self.wal.last_attempt(batch.name)
        error = last.error if last else None
        gave_up = GaveUp(self.wal.clock(), outcome.refused, CONSUMER_WAL, error, hold.attempt)
        if self.wal.give_up(batch.name, gave_up):
            log.error(
                "batch %s failed for good: reason %s in %s at attempt %s, created at %s: %s "
                "(%s events of %s)",
                *(batch.name, gave_up.reason, gave_up.layer, gave_up.attempts, batch.created_at, error),
                *(batch.rows, ", ".join(_described(batch))),
            )
        return Result.EXPIRED if outcome.refused == EXPIRED else Result.FAILED

    def _retry_later(self, batch: WalBatch, hold: HeldLease, error: Exception) -> None:
        now = self.wal.clock()
        wait = backoff(hold.attempt, self.wal.settings, self._chance())
        transient = isinstance(error, Transient)
        log.warning("batch %s: attempt %s: %s", batch.name, hold.attempt, error, exc_info=not transient)
        attempt = Attempt(hold.attempt, self.holder, now, now + wait, _describe(error), transient)
        self.wal.add_attempt(batch.name, attempt)
        hold.release()


def _described(batch: WalBatch) -> list[str]:
    """Some of its parts, for the log."""
    shown = [
        f"{part.channel}, partition {part.partition}, positions {part.first} to {part.last}"
        for part in batch.parts[:_SHOWN]
    ]
    more = len(batch.parts) - len(shown)
    return [*shown, f"and {more} others"] if more else shown


def _describe(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def reload_confirmed(wal: Wal, warehouse: Warehouse, failed: FailedEvents) -> int:
    """Load every batch that was confirmed, with the outcome that it had; returns how many.

    What is pending is left to the loader. What was cleaned up is no longer here: the archive has it.
    Changes nothing where nothing is missing, so that it can be repeated.
    """
    loaded = 0
    for group in groups(list(_confirmed(wal))):
        readable = list(_loads(wal, group))
        warehouse.load(readable)
        loaded += len(readable)
    for name in wal.survey().failed:
        gave_up = wal.gave_up(name)
        if gave_up is not None:
            warehouse.refuse(name, wal.channels(name), gave_up.reason)
    failed.mirror(everything=True)
    return loaded


def _confirmed(wal: Wal) -> Iterator[WalBatch]:
    for name in wal.records.names("confirmed"):
        try:
            yield wal.batch(name)
        except Damaged as damage:
            log.error("batch %s cannot be loaded again: %s", name, damage)


def _loads(wal: Wal, batches: Iterable[WalBatch]) -> Iterator[Load]:
    for batch in batches:
        try:
            rows = healthy(wal, batch.name, segments.read_all(wal.store, batch.segments))
        except Damaged as damage:
            log.error("batch %s cannot be loaded again: %s", batch.name, damage)
            continue
        yield Load(batch.name, batch.channels, rows)
