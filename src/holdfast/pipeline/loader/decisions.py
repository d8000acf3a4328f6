"""Decisions of the loader, on values alone, and the results of its work."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

from holdfast.model.errors import Terminal
from holdfast.pipeline.wal import WalBatch
from holdfast.pipeline.wal.log import WalSettings
from holdfast.pipeline.wal.records import Attempt

if TYPE_CHECKING:
    import pyarrow as pa

    from holdfast.pipeline.wal import WalBatch

EXPIRED, EXHAUSTED = "expired", "max_retries_exceeded"
CONFLICT, INVALID, REJECTED = "conflict", "invalid", "rejected"
CONSUMER_WAL, VALIDATION = "consumer_wal", "validation"
_JITTER = 0.25
GROUP_ROWS, GROUP_BYTES = 250_000, 128 << 20
"""What goes into the warehouse in one transaction, about; bytes as they are stored."""


class TryNow(NamedTuple):
    """Try it now."""


class TryLater(NamedTuple):
    """Not before this time."""

    until: datetime


class GiveUp(NamedTuple):
    """It has failed, unless the warehouse has it already."""

    reason: str


Decision = TryNow | TryLater | GiveUp


def decide(
    now: datetime, created_at: datetime, made: int, last: Attempt | None, settings: WalSettings
) -> Decision:
    """What to do with a pending batch after `made` attempts, of which `last` is the last that failed."""
    if now - created_at >= settings.entry_ttl:
        return GiveUp(EXPIRED)
    if last is not None and last.retry_at > now:
        return TryLater(last.retry_at)
    if made >= settings.max_retries:
        return GiveUp(EXHAUSTED)
    return TryNow()


def backoff(attempt: int, settings: WalSettings, chance: float) -> timedelta:
    """How long to wait after a failed attempt: doubled each time, within its bounds. `chance` is 0 to 1."""
    shortest, longest = settings.retry_backoff, settings.max_backoff
    doubled: timedelta = shortest * 2 ** min(attempt - 1, 32)
    wait = min(doubled, longest) * (1 + _JITTER * (2 * chance - 1))
    return max(shortest, min(wait, longest))


def groups(
    batches: Sequence[WalBatch], rows: int = GROUP_ROWS, size: int = GROUP_BYTES
) -> Iterator[list[WalBatch]]:
    """Batches in order, together as far as so many rows and bytes go; a larger one by itself."""
    group: list[WalBatch] = []
    for batch in batches:
        full = sum(each.rows for each in group) + batch.rows > rows
        if group and (full or sum(each.bytes for each in group) + batch.bytes > size):
            yield group
            group = []
        group.append(batch)
    if group:
        yield group


def isolate(
    rows: pa.Table, error: Terminal, rehearse: Callable[[pa.Table], None]
) -> Iterator[tuple[pa.Table, Terminal]]:
    """The single rows, of rows that fail together with `error`, that fail alone: by halves."""
    if rows.num_rows == 1:
        yield rows, error
        return
    middle = rows.num_rows // 2
    for half in (rows.slice(0, middle), rows.slice(middle)):
        try:
            rehearse(half)
        except Terminal as found:
            yield from isolate(half, found, rehearse)


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


def recovery(results: Iterable[tuple[WalBatch, Result]], duration: timedelta) -> Recovery:
    """What became of the batches that a start found."""
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
