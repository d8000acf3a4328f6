"""The loader: takes pending batches from the WAL to the warehouse, and settles them.

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
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from holdfast import failpoints
from holdfast.correlation import correlated
from holdfast.model.errors import Damaged, LeaseLost, Terminal, Transient
from holdfast.pipeline.loader.decisions import (
    CONSUMER_WAL,
    EXPIRED,
    GiveUp,
    Verdict,
    Wait,
    backoff,
    decide,
    groups,
)
from holdfast.pipeline.loader.rejects import Rejects
from holdfast.pipeline.loader.results import Recovery, Result, recovery
from holdfast.pipeline.stores.address import cloud_environment
from holdfast.pipeline.wal import Batch, Wal, segments
from holdfast.pipeline.wal.leases import Hold
from holdfast.pipeline.wal.records import Attempt, Confirmation, GaveUp
from holdfast.pipeline.wal.rows import healthy
from holdfast.pipeline.wal.stored import StoredRows
from holdfast.pipeline.warehouse import Load, Outcome, Warehouse, spread

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")
log = logging.getLogger(__name__)
Watch = Callable[[Batch, Result], None]


class Ready(NamedTuple):
    """A batch in hand, with what is to go in."""

    batch: Batch
    hold: Hold
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

    def run_once(self, *, at_once: bool = False) -> list[tuple[Batch, Result]]:
        """Try every pending batch that is due; with `at_once`, also those that wait after a failure."""
        return self.load(self.wal.pending(), at_once=at_once)

    def recover(self) -> Recovery:
        """The round after a start."""
        began = time.monotonic()
        results = self.run_once(at_once=True)
        found = recovery(results, timedelta(seconds=time.monotonic() - began))
        log.info("recovered the WAL %s: %s", self.wal.store.url, found)
        return found

    def load(self, batches: Sequence[Batch], *, at_once: bool = False) -> list[tuple[Batch, Result]]:
        """Take batches as far as they go now, as many in one transaction of the warehouse as its memory
        allows; returns the result of each."""
        found: list[tuple[Batch, Result]] = []
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

    def _load(self, group: Sequence[Batch], at_once: bool) -> dict[str, Result]:
        results: dict[str, Result] = {}
        ready: list[Ready] = []
        for batch in group:
            with correlated(batch=batch.name):
                match self._prepare(batch, at_once):
                    case Ready() as each:
                        ready.append(each)
                    case Result() as result:
                        results[batch.name] = result
        return results | (self._put(ready) if ready else {})

    def _prepare(self, batch: Batch, at_once: bool) -> Ready | Result:
        wal, name = self.wal, batch.name
        made = wal.leases.latest(name)
        attempts = made.attempt if made else 0
        verdict = decide(wal.clock(), batch.created_at, attempts, wal.last_attempt(name), wal.settings)
        if isinstance(verdict, Wait) and not at_once:
            return Result.WAITING
        lease = wal.leases.claim(name, self.holder)
        if lease is None:
            return Result.HELD
        failpoints.hit("loader.after_lease")
        hold = Hold(wal.leases, lease)
        return self._guarded(batch, hold, partial(self._read, batch, hold, verdict))

    def _guarded(self, batch: Batch, hold: Hold, act: Callable[[], T]) -> T | Result:
        """What comes of an act on one batch, or what its failure means."""
        try:
            return act()
        except LeaseLost:
            return Result.HELD
        except Damaged as damage:
            self.wal.quarantine(batch.name, str(damage))
            hold.release()
            return Result.QUARANTINED
        except Exception as error:
            self._retry_later(batch, hold, error)
            return Result.RETRY

    def _read(self, batch: Batch, hold: Hold, verdict: Verdict) -> Ready | Result:
        if self.wal.is_confirmed(batch.name):
            return Result.ALREADY
        if isinstance(verdict, GiveUp):
            return self._give_up(batch, hold, verdict.reason)
        # Nobody can have loaded what nobody has tried.
        known = self.warehouse.outcome(batch.name, batch.channels) if hold.attempt > 1 else None
        if known is not None:
            return self._settle(batch, hold, known, again=True)
        return Ready(batch, hold, Load(batch.name, batch.channels, self._rows(batch, hold)))

    def _rows(self, batch: Batch, hold: Hold) -> pa.Table | StoredRows:
        """What is to go in. Of a large batch only what is invalid is read here, where others can read it."""
        wal, rejects = self.wal, Rejects(self.wal, self.warehouse, batch, hold)
        if not self.warehouse.reads_segments or batch.bytes < spread.SHARE:
            rows = healthy(wal, batch.name, segments.read_all(wal.store, batch.segments))
            return rejects.invalid(rows)
        invalid = [segment for segment in batch.segments if segment.invalid != 0]
        if invalid:
            rejects.invalid(healthy(wal, batch.name, segments.read_all(wal.store, invalid)))
        failed = frozenset(wal.left_out(batch.name))
        return StoredRows(wal.store.url, batch.segments, failed, environment=cloud_environment())

    def _put(self, ready: Sequence[Ready]) -> dict[str, Result]:
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
                each.batch, each.hold, partial(self._settle, each.batch, each.hold, outcome)
            )
            for each, outcome in zip(ready, outcomes, strict=True)
        }

    def _put_alone(self, ready: Ready, error: Terminal | Damaged | None) -> Result:
        """One batch without the rows that cannot go in. `error` is the one that it failed with alone."""
        batch, hold = ready.batch, ready.hold
        load = ready.load._replace(rows=ready.load.table)
        if error is None:
            hold.keep()
            try:
                return self._settle(batch, hold, self.warehouse.load([load])[0])
            except Terminal as found:
                error = found
        if not Rejects(self.wal, self.warehouse, batch, hold).poison(load.table):
            raise error  # it is not the data: try again
        [outcome] = self.warehouse.load([load._replace(rows=healthy(self.wal, batch.name, load.table))])
        return self._settle(batch, hold, outcome)

    def _settle(self, batch: Batch, hold: Hold, outcome: Outcome, *, again: bool = False) -> Result:
        """Write down what the warehouse's ledger says."""
        if outcome.refused is not None:
            return self._give_up(batch, hold, outcome.refused)
        Rejects(self.wal, self.warehouse, batch, hold).rivals(outcome.conflicts)
        failed = len(self.wal.left_out(batch.name))
        counts = (batch.rows, outcome.inserted, outcome.duplicates, failed)
        self.wal.confirm(batch, Confirmation(self.wal.clock(), self.holder, *counts))
        return Result.ALREADY if again else Result.LOADED

    def _give_up(self, batch: Batch, hold: Hold, reason: str) -> Result:
        """Only after the ledger was told: a loader that is late, and still at it, is then refused."""
        outcome = self.warehouse.refuse(batch.name, batch.channels, reason)
        if outcome.refused is None:
            return self._settle(batch, hold, outcome, again=True)
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

    def _retry_later(self, batch: Batch, hold: Hold, error: Exception) -> None:
        now = self.wal.clock()
        wait = backoff(hold.attempt, self.wal.settings, self._chance())
        transient = isinstance(error, Transient)
        log.warning("batch %s: attempt %s: %s", batch.name, hold.attempt, error, exc_info=not transient)
        attempt = Attempt(hold.attempt, self.holder, now, now + wait, _describe(error), transient)
        self.wal.add_attempt(batch.name, attempt)
        hold.release()


_SHOWN = 5


def _described(batch: Batch) -> list[str]:
    """Some of its parts, for the log."""
    shown = [
        f"{part.channel}, partition {part.partition}, positions {part.first} to {part.last}"
        for part in batch.parts[:_SHOWN]
    ]
    more = len(batch.parts) - len(shown)
    return [*shown, f"and {more} others"] if more else shown


def _describe(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
