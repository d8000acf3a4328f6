"""Rejects: records of a batch that cannot go in. They fail in the WAL; the warehouse hears of them later."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.model.errors import Terminal
from holdfast.pipeline.failed.view import failure_of
from holdfast.pipeline.loader.decisions import CONFLICT, INVALID, REJECTED, VALIDATION, isolate
from holdfast.pipeline.wal import Batch, Wal, segments
from holdfast.pipeline.wal.identity import failed_id
from holdfast.pipeline.wal.leases import Hold
from holdfast.pipeline.wal.rows import named
from holdfast.pipeline.warehouse import Warehouse

log = logging.getLogger(__name__)
ABREAST = 16
"""Failed records that are written at once: each is an object of its own."""


class Rejects:
    """Those of one batch, while a loader holds it."""

    def __init__(self, wal: Wal, warehouse: Warehouse, batch: Batch, hold: Hold) -> None:
        self._wal, self._warehouse, self._batch, self._hold = wal, warehouse, batch, hold

    def invalid(self, rows: pa.Table) -> pa.Table:
        """Fail what validation found wanting; answers the others."""
        valid = pc.is_null(rows["problem"])
        invalid = rows.filter(pc.invert(valid)).to_pylist()
        self._fail([(row, row["problem"]) for row in invalid], INVALID)
        return rows.filter(valid) if invalid else rows

    def poison(self, rows: pa.Table) -> bool:
        """Find the rows that the warehouse does not take, and fail each as it is found."""
        rehearse, found = self._warehouse.rehearse, False
        try:
            rehearse(rows)
        except Terminal as error:
            for row, reason in isolate(rows, error, rehearse):
                self._fail([(row.to_pylist()[0], str(reason))], REJECTED)
                found = True
        return found

    def rivals(self, names: Sequence[str]) -> None:
        """Fail the rows whose ids the warehouse holds with other content."""
        if names:
            rows = named(segments.read_all(self._wal.store, self._batch.segments), names)
            error = "the warehouse holds this id with other content"
            self._fail([(row, error) for row in rows.to_pylist()], CONFLICT)

    def _fail(self, rows: Sequence[tuple[dict[str, Any], str]], reason: str) -> None:
        """Rows → failed, several at once. The lease is kept between them: who has lost it writes no more."""
        write = partial(self._write, reason)
        with ThreadPoolExecutor(ABREAST) as pool:
            for at in range(0, len(rows), ABREAST):
                list(pool.map(write, rows[at : at + ABREAST]))
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
