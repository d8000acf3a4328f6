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
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from holdfast import failpoints
from holdfast.model.errors import Damaged, LeaseLost, Terminal, Transient
from holdfast.pipeline.failed.view import failure_of
from holdfast.pipeline.loader.decisions import (
    CONFLICT,
    CONSUMER_WAL,
    EXPIRED,
    INVALID,
    REJECTED,
    VALIDATION,
    GiveUp,
    Wait,
    backoff,
    decide,
    isolate,
)
from holdfast.pipeline.wal import Batch, Wal, segments
from holdfast.pipeline.wal.leases import Hold
from holdfast.pipeline.wal.records import Attempt, Confirmation, GaveUp
from holdfast.pipeline.wal.rows import healthy, only
from holdfast.pipeline.warehouse import Outcome, Warehouse

log = logging.getLogger(__name__)
ABREAST = 16
"""Failed records that are written at once: each is an object of its own."""


class Result(StrEnum):
    """What became of a batch."""

    LOADED = "loaded"
    ALREADY = "already committed"
    WAITING = "waiting"
    HELD = "held by another"
    RETRY = "failed, to be tried again"
    EXPIRED = "expired"
    FAILED = "failed"
    QUARANTINED = "quarantined"


Watch = Callable[[Batch, Result], None]


@dataclass(slots=True)
class Recovery:
    """What a start found in the WAL, in entries."""

    pending: int = 0
    already_committed: int = 0
    recovered: int = 0
    expired: int = 0
    failed: int = 0
    skipped: int = 0
    duration: timedelta = timedelta(0)


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
        began, found = time.monotonic(), Recovery()
        for batch, result in self.run_once(at_once=True):
            found.pending += batch.rows
            match result:
                case Result.ALREADY:
                    found.already_committed += batch.rows
                case Result.LOADED:
                    found.recovered += batch.rows
                case Result.EXPIRED:
                    found.expired += batch.rows
                case Result.HELD | Result.WAITING:
                    found.skipped += batch.rows
                case Result.FAILED | Result.RETRY | Result.QUARANTINED:
                    found.failed += batch.rows
        found.duration = timedelta(seconds=time.monotonic() - began)
        log.info("recovered the WAL %s: %s", self.wal.store.url, found)
        return found

    def load(self, batch: Batch, *, at_once: bool = False) -> Result:
        """Take one batch as far as it goes now."""
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
        known = self.warehouse.outcome(batch.name)
        if known is not None:
            return self._settle(batch, hold, known, again=True)
        rows = healthy(self.wal, batch.name, segments.read_all(self.wal.store, batch.segments))
        rows = self._fail_invalid(batch, hold, rows)
        load = partial(self.warehouse.load, batch.name, batch.key.channel)
        try:
            outcome = load(rows)
        except Terminal as error:
            if not self._fail_poison(batch, hold, rows):
                raise error  # it is not the data: try again
            outcome = load(healthy(self.wal, batch.name, rows))
        return self._settle(batch, hold, outcome)

    def _settle(self, batch: Batch, hold: Hold, outcome: Outcome, *, again: bool = False) -> Result:
        """Write down what the warehouse's ledger says."""
        if outcome.refused is not None:
            return self._give_up(batch, hold, outcome.refused)
        if outcome.conflicts:
            rows = segments.read_all(self.wal.store, batch.segments)
            rivals = only(rows, set(outcome.conflicts))
            error = "the warehouse holds this id with other content"
            self._fail(batch, hold, [(row, error) for row in rivals.to_pylist()], CONFLICT)
        failed = len(self.wal.failed_positions(batch.name))
        counts = (batch.rows, outcome.inserted, outcome.duplicates, failed)
        self.wal.confirm(batch.name, Confirmation(self.wal.clock(), self.holder, *counts))
        failpoints.hit("loader.after_confirm")
        return Result.ALREADY if again else Result.LOADED

    def _give_up(self, batch: Batch, hold: Hold, reason: str) -> Result:
        """Only after the ledger was told: a loader that is late, and still at it, is then refused."""
        outcome = self.warehouse.refuse(batch.name, reason)
        if outcome.refused is None:
            return self._settle(batch, hold, outcome, again=True)
        last = self.wal.last_attempt(batch.name)
        error = last.error if last else None
        gave_up = GaveUp(self.wal.clock(), outcome.refused, CONSUMER_WAL, error, hold.attempt)
        self.wal.give_up(batch.name, gave_up)
        return Result.EXPIRED if outcome.refused == EXPIRED else Result.FAILED

    def _fail_invalid(self, batch: Batch, hold: Hold, rows: pa.Table) -> pa.Table:
        """Fail what validation found wanting; answers the others."""
        valid = pc.is_null(rows["problem"])
        invalid = rows.filter(pc.invert(valid)).to_pylist()
        self._fail(batch, hold, [(row, row["problem"]) for row in invalid], INVALID)
        return rows.filter(valid) if invalid else rows

    def _fail_poison(self, batch: Batch, hold: Hold, rows: pa.Table) -> bool:
        """Find the rows that the warehouse does not take, and fail each as it is found."""
        rehearse = partial(self.warehouse.rehearse, batch.key.channel)
        found = False
        try:
            rehearse(rows)
        except Terminal as error:
            for row, reason in isolate(rows, error, rehearse):
                self._fail(batch, hold, [(row.to_pylist()[0], str(reason))], REJECTED)
                found = True
        return found

    def _fail(
        self, batch: Batch, hold: Hold, rows: Sequence[tuple[dict[str, Any], str]], reason: str
    ) -> None:
        """Rows → failed, in the WAL. The warehouse hears of them later."""
        layer = VALIDATION if reason == INVALID else self.warehouse.layer

        def write(each: tuple[dict[str, Any], str]) -> None:
            row, error = each
            failure = failure_of(
                batch.key,
                row,
                created_at=batch.created_at,
                failed_at=self.wal.clock(),
                reason=reason,
                layer=layer,
                error=error,
                attempts=hold.attempt,
            )
            self.wal.fail(batch.name, failure)

        with ThreadPoolExecutor(ABREAST) as pool:
            for _ in pool.map(write, rows):
                hold.keep()

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
