"""Defects of archiver and ingest: the cursor is first, ids are counted, nothing is checked (I7 to I12)."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import signal
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from holdfast import failpoints
from holdfast.contracts import Backend
from holdfast.model.event import Event
from holdfast.pipeline.archive.commit import Committer as ArchiveCommitter
from holdfast.pipeline.archive.manifests import Manifest
from holdfast.pipeline.archive.policy import ARCHIVER, ArchivePolicy
from holdfast.pipeline.ingest import commit, validation
from holdfast.pipeline.ingest.commit import WalCommitter as IngestCommitter
from holdfast.pipeline.offsets import ChannelPartition
from holdfast.pipeline.stores import ObjectStore, open_store
from holdfast.pipeline.wal import Segment, StagedSegment, WalBatch, segments
from holdfast.pipeline.wal.batch import batch_of
from holdfast.pipeline.warehouse import Load, LoadOutcome, duck
from holdfast.pipeline.warehouse.duck import DuckWarehouse
from holdfast.pipeline.warehouse.loads import incoming_rows
from holdfast.wiring import backend
from holdfast_chaos import without_spark
from holdfast_chaos.checks import check_history
from holdfast_chaos.checks.pipeline import check_archive, check_ingest, falsified
from holdfast_chaos.history import Call
from holdfast_chaos.ingest_state import totals
from holdfast_chaos.rig import Rig
from holdfast_chaos.scenario import IngestScenario

CHANNEL, EVENTS, SIZE = "gbe.events.audit.change", 20, 5
_MINUTE = timedelta(minutes=1)


class CursorFirst(ArchiveCommitter):
    """The cursor is at the end before anything is written."""

    async def recover(self) -> list[Manifest]:
        self._before = await super().cursors()
        for spot, position in self._before.items():
            store = self._backends[spot.partition]
            last = (await store.log.extent(spot.channel)).last
            await store.cursors.move(spot.channel, self._policy.consumer, position, last or "")
        return []

    async def cursors(self) -> dict[ChannelPartition, str | None]:
        return self._before


class WriteBehind:
    """An object store that says yes to an object and keeps it in memory."""

    def __init__(self, inner: ObjectStore) -> None:
        self.inner, self._later = inner, dict[str, bytes]()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def put(self, name: str, data: bytes) -> bool:
        if name.startswith("archive/"):
            self._later[name] = data
            return True
        return self.inner.put(name, data)


async def archive(spec: dict[str, Any]) -> None:
    """Archive everything. Specification: url, destination, defect: cursor-first, write-behind or none."""
    if spec["defect"] == "cursor-first":
        vars(without_spark)["ArchiveCommitter"] = CursorFirst
    opened, objects = backend(spec["url"]), open_store(spec["destination"])
    await opened.open()
    store: Any = WriteBehind(objects) if spec["defect"] == "write-behind" else objects
    await without_spark.archive([opened], store, _policy(spec["destination"]), EVENTS)


def _policy(destination: str) -> ArchivePolicy:
    return ArchivePolicy(CHANNEL, destination, batch_size=SIZE)


async def _archived(rig: Rig, point: str, defect: str) -> str:
    """Publish events, and kill an archiver at that point. Returns where it archived to."""
    destination = str(rig.folder / "archive")
    async with rig.bus("publisher") as bus:
        await bus.publish_many(CHANNEL, [Event({"n": n}, f"e-{n}") for n in range(EVENTS)])
    spec = {"part": "pipeline_defects.archive", "destination": destination, "defect": defect}
    await rig.start("control", f"{point}=kill", **spec).killed()
    return destination


async def cursor_first(rig: Rig, sound: bool) -> set[str]:
    """An archiver dies before its first object, another one goes on, and old events are trimmed."""
    destination = await _archived(rig, "archive.before_put", "" if sound else "cursor-first")
    store = rig.recorded("sweeper")
    await store.open()
    await without_spark.archive([store], open_store(destination), _policy(destination), EVENTS)
    await _trim(store)
    await store.close()
    return await _archive_broken(rig, destination)


async def write_behind(rig: Rig, sound: bool) -> set[str]:
    """An archiver dies after it has moved its cursor."""
    destination = await _archived(rig, "archive.after_cursor", "" if sound else "write-behind")
    return await _archive_broken(rig, destination)


async def rotten_object(rig: Rig, sound: bool) -> set[str]:
    """A byte of an archived object changes."""
    destination = await _archived(rig, "archive.after_cursor", "")
    if not sound:
        path = next(path for path in sorted(Path(destination, "archive").rglob("*.gz")))
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
    return await _archive_broken(rig, destination)


async def _trim(store: Backend) -> None:
    lock = await store.locks.acquire("gbe:lock:sweeper", "control", _MINUTE)
    if lock is None:
        raise RuntimeError("nobody else sweeps here, and yet the lock was not to be had")
    await store.advance(_MINUTE)
    await store.retention.trim(CHANNEL, await store.now(), 10 * EVENTS, lock)


async def _archive_broken(rig: Rig, destination: str) -> set[str]:
    """What the histories, the store and the objects say together."""
    found = await asyncio.to_thread(check_archive, open_store(destination))
    items = [{"channel": CHANNEL, "consumer": ARCHIVER, "id": name} for name in found.ids]
    calls = [*rig.calls(), Call("check", "archived", items, outcome="ok")]
    broken = {violation.invariant for violation in check_history(calls, await rig.final_state())}
    return broken | ({"I8"} if found.wrong else set())


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

    def hasty(self: IngestCommitter, staged: Sequence[StagedSegment]) -> WalBatch:
        batch = batch_of(staged, self._wal.clock())
        self._advance(batch.name, batch.parts)
        return self._wal.commit(batch)

    vars(commit)["WalCommitter"].commit = hasty


def commit_twice() -> None:
    """Rows and ledger entry go in in two transactions."""

    def split(self: DuckWarehouse, loads: Sequence[Load]) -> list[LoadOutcome]:
        file = self._file
        with file.incoming(incoming_rows([])) as connection:
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
    scenario = IngestScenario(rig.url, rig.folder)
    await _published(scenario, 3)
    await _killed(scenario, "wal.before_plan", None if sound else move_cursor_first)
    await asyncio.to_thread(scenario.drive)
    return await _ingest_broken(scenario)


async def counted_ids(rig: Rig, sound: bool) -> set[str]:
    """A driver dies over a pending batch; the next one stages the same events again."""
    scenario, defect = IngestScenario(rig.url, rig.folder), None if sound else count_transactions
    await _published(scenario, 3)
    await _killed(scenario, "wal.after_pending", defect)
    await _published(scenario, 1)
    await asyncio.to_thread(scenario.drive, defect=defect, follow=False)
    return await _ingest_broken(scenario)


async def two_transactions(rig: Rig, sound: bool) -> set[str]:
    """A driver dies while it loads."""
    scenario = IngestScenario(rig.url, rig.folder)
    await _published(scenario, 3)
    await _killed(scenario, "loader.before_commit", None if sound else commit_twice)
    return await _ingest_broken(scenario, drained=False)


async def damaged_segment(rig: Rig, sound: bool) -> set[str]:
    """A segment of a pending batch changes on the disk before it is loaded."""
    scenario = IngestScenario(rig.url, rig.folder)
    await _published(scenario, 3)
    await _killed(scenario, "wal.after_cursor", None)
    [path] = (rig.folder / "wal" / "segments").rglob("*.parquet")
    rows = pq.read_table(path)
    rotten = pc.replace_substring(rows["data"], '"total":', '"total":9')
    pq.write_table(rows.set_column(rows.schema.get_field_index("data"), "data", rotten), path)
    await asyncio.to_thread(scenario.drive, defect=None if sound else read_unchecked)
    published = {f"o-{number}": number for number in range(1, 4)}
    return {violation.invariant for violation in falsified(published, totals(rig.folder))}


async def _published(scenario: IngestScenario, count: int) -> None:
    await asyncio.to_thread(scenario.publish, count)


async def _killed(scenario: IngestScenario, point: str, defect: Defect | None) -> None:
    code = await asyncio.to_thread(scenario.drive, kill=point, defect=defect)
    if code != -signal.SIGKILL:
        raise RuntimeError(f"a driver was to die at {point}, and ended with {code}")


async def _ingest_broken(scenario: IngestScenario, *, drained: bool = True) -> set[str]:
    found = await asyncio.to_thread(scenario.state)
    return {violation.invariant for violation in check_ingest(scenario.history, found, drained=drained)}
