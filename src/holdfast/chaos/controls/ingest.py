"""Defects of the ingest: cursor first, counted ids, two transactions, unchecked segments (I9 to I12)."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import signal
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from holdfast import failpoints
from holdfast.chaos.evidence_ingest import totals
from holdfast.chaos.judge.ingest import falsified, judge
from holdfast.chaos.rig import Rig
from holdfast.chaos.trial import Trial
from holdfast.pipeline.ingest import commit, validation
from holdfast.pipeline.ingest.commit import Committer
from holdfast.pipeline.stores import ObjectStore
from holdfast.pipeline.wal import Batch, Segment, Staged, segments
from holdfast.pipeline.wal.batch import batch_of
from holdfast.pipeline.warehouse import Load, Outcome, duck
from holdfast.pipeline.warehouse.duck import DuckWarehouse
from holdfast.pipeline.warehouse.incoming import incoming

Defect = Callable[[], None]


def count_transactions() -> None:
    """Transaction ids come from a counter that every process starts anew."""
    counter = itertools.count(int(datetime.now(UTC).timestamp() * 1e6))

    def counted(channel: str, sources: list[str], ids: list[str]) -> tuple[list[str], list[int]]:
        texts = [f"{source}:{event}:{next(counter)}" for source, event in zip(sources, ids, strict=True)]
        digests = [hashlib.sha256(text.encode()).digest()[:16] for text in texts]
        return [each.hex() for each in digests], [
            int.from_bytes(each[:8], "big", signed=True) for each in digests
        ]

    vars(validation)["transaction_ids"] = counted


def move_cursor_first() -> None:
    """The cursor moves before the batch is in the WAL."""

    def hasty(self: Committer, staged: Sequence[Staged]) -> Batch:
        batch = batch_of(staged, self._wal.clock())
        self._advance(batch.name, batch.parts)
        return self._wal.commit(batch)

    vars(commit)["Committer"].commit = hasty


def commit_twice() -> None:
    """Rows and ledger entry go in in two transactions."""

    def split(self: DuckWarehouse, loads: Sequence[Load]) -> list[Outcome]:
        file = self._file
        with file.incoming(incoming([])) as connection:
            file.prepare(connection, [self._tables.of(each) for load in loads for each in load.channels])
            with file.transaction(connection):
                outcomes = self._insert(connection, loads)
            failpoints.hit("loader.before_commit")
            with file.transaction(connection):
                duck._record(connection, outcomes)
        return [outcomes[load.key] for load in loads]

    vars(duck)["DuckWarehouse"].load = split


def read_unchecked() -> None:
    """Segments are read without a look at their checksums."""

    def trusting(store: ObjectStore, segment: Segment) -> pa.Table:
        rows: pa.Table = pq.read_table(pa.BufferReader(store.get(segment.name)))
        return rows

    vars(segments)["read"] = trusting


async def cursor_before_pending(rig: Rig, sound: bool) -> set[str]:
    """A driver dies when everything is staged and nothing is planned; another one goes on. With a plan it
    would find what the cursor has passed, and repair it."""
    trial = Trial(rig.url, rig.folder)
    await _published(trial, 3)
    await _killed(trial, "wal.before_plan", None if sound else move_cursor_first)
    await asyncio.to_thread(trial.drive)
    return await _broken(trial)


async def counted_ids(rig: Rig, sound: bool) -> set[str]:
    """A driver dies over a pending batch; the next one stages the same events again."""
    trial, defect = Trial(rig.url, rig.folder), None if sound else count_transactions
    await _published(trial, 3)
    await _killed(trial, "wal.after_pending", defect)
    await _published(trial, 1)
    await asyncio.to_thread(trial.drive, defect=defect, follow=False)
    return await _broken(trial)


async def two_transactions(rig: Rig, sound: bool) -> set[str]:
    """A driver dies while it loads."""
    trial = Trial(rig.url, rig.folder)
    await _published(trial, 3)
    await _killed(trial, "loader.before_commit", None if sound else commit_twice)
    return await _broken(trial, drained=False)


async def damaged_segment(rig: Rig, sound: bool) -> set[str]:
    """A segment of a pending batch changes on the disk before it is loaded."""
    trial = Trial(rig.url, rig.folder)
    await _published(trial, 3)
    await _killed(trial, "wal.after_cursor", None)
    [path] = (rig.folder / "wal" / "segments").rglob("*.parquet")
    rows = pq.read_table(path)
    rotten = pc.replace_substring(rows["data"], '"total":', '"total":9')
    pq.write_table(rows.set_column(rows.schema.get_field_index("data"), "data", rotten), path)
    await asyncio.to_thread(trial.drive, defect=None if sound else read_unchecked)
    published = {f"o-{number}": number for number in range(1, 4)}
    return {violation.invariant for violation in falsified(published, totals(rig.folder))}


async def _published(trial: Trial, count: int) -> None:
    await asyncio.to_thread(trial.publish, count)


async def _killed(trial: Trial, point: str, defect: Defect | None) -> None:
    code = await asyncio.to_thread(trial.drive, kill=point, defect=defect)
    if code != -signal.SIGKILL:
        raise RuntimeError(f"a driver was to die at {point}, and ended with {code}")


async def _broken(trial: Trial, *, drained: bool = True) -> set[str]:
    found = await asyncio.to_thread(trial.evidence)
    return {violation.invariant for violation in judge(trial.history, found, drained=drained)}
