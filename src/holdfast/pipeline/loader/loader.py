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
from collections.abc import Callable
from datetime import timedelta
from functools import partial

from holdfast import failpoints
from holdfast.correlation import correlated
from holdfast.model.errors import Damaged, LeaseLost, Terminal, Transient
from holdfast.pipeline.loader.decisions import CONSUMER_WAL, EXPIRED, GiveUp, Wait, backoff, decide
from holdfast.pipeline.loader.rejects import Rejects
from holdfast.pipeline.loader.results import Recovery, Result, recovery
from holdfast.pipeline.wal import Batch, Wal, segments
from holdfast.pipeline.wal.leases import Hold
from holdfast.pipeline.wal.records import Attempt, Confirmation, GaveUp
from holdfast.pipeline.wal.rows import healthy
from holdfast.pipeline.warehouse import Load, Outcome, Warehouse

log = logging.getLogger(__name__)
Watch = Callable[[Batch, Result], None]


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
        return [(batch, self.load(batch, at_once=at_once)) for batch in self.wal.pending()]

    def recover(self) -> Recovery:
        """The round after a start."""
        began = time.monotonic()
        results = self.run_once(at_once=True)
        found = recovery(results, timedelta(seconds=time.monotonic() - began))
        log.info("recovered the WAL %s: %s", self.wal.store.url, found)
        return found

    def load(self, batch: Batch, *, at_once: bool = False) -> Result:
        """Take one batch as far as it goes now."""
        with correlated(batch=batch.name):
            result = self._load(batch, at_once)
            if result not in (Result.LOADED, Result.WAITING):
                log.warning("batch %s of %s events: %s", batch.name, batch.rows, result)
        self._watch(batch, result)
        return result

    def _load(self, batch: Batch, at_once: bool) -> Result:
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
        try:
            if wal.confirmation(name) is not None:
                return Result.ALREADY
            if isinstance(verdict, GiveUp):
                return self._give_up(batch, hold, verdict.reason)
            return self._put(batch, hold)
        except LeaseLost:
            return Result.HELD
        except Damaged as damage:
            wal.quarantine(name, str(damage))
            hold.release()
            return Result.QUARANTINED
        except Exception as error:
            self._retry_later(batch, hold, error)
            return Result.RETRY

    def _put(self, batch: Batch, hold: Hold) -> Result:
        known = self.warehouse.outcome(batch.name, batch.channels)
        if known is not None:
            return self._settle(batch, hold, known, again=True)
        rows = healthy(self.wal, batch.name, segments.read_all(self.wal.store, batch.segments))
        rejects = Rejects(self.wal, self.warehouse, batch, hold)
        rows = rejects.invalid(rows)
        load = partial(Load, batch.name, batch.channels)
        try:
            [outcome] = self.warehouse.load([load(rows)])
        except Terminal as error:
            if not rejects.poison(rows):
                raise error  # it is not the data: try again
            [outcome] = self.warehouse.load([load(healthy(self.wal, batch.name, rows))])
        return self._settle(batch, hold, outcome)

    def _settle(self, batch: Batch, hold: Hold, outcome: Outcome, *, again: bool = False) -> Result:
        """Write down what the warehouse's ledger says."""
        if outcome.refused is not None:
            return self._give_up(batch, hold, outcome.refused)
        Rejects(self.wal, self.warehouse, batch, hold).rivals(outcome.conflicts)
        failed = len(self.wal.failed_names(batch.name))
        counts = (batch.rows, outcome.inserted, outcome.duplicates, failed)
        self.wal.confirm(batch.name, Confirmation(self.wal.clock(), self.holder, *counts))
        failpoints.hit("loader.after_confirm")
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
                "(%s events of %s, partition %s, positions %s to %s)",
                *(batch.name, gave_up.reason, gave_up.layer, gave_up.attempts, batch.created_at, error),
                *(batch.rows, batch.key.channel, batch.key.partition, batch.key.first, batch.key.last),
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


def _describe(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
