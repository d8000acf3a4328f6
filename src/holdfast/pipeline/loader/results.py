"""Results: what became of batches, and the account of a start."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum

from holdfast.pipeline.wal import Batch


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


def recovery(results: Iterable[tuple[Batch, Result]], duration: timedelta) -> Recovery:
    """The account of the round after a start."""
    found = Recovery(duration=duration)
    for batch, result in results:
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
    return found
