"""The writer: rows in, objects out. It runs in tasks and returns descriptions of what it wrote."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc
from isal import igzip

from holdfast import failpoints
from holdfast.model.errors import Damaged, ObjectConflict
from holdfast.pipeline.archive.lines import content, encode_lines
from holdfast.pipeline.archive.objects import ObjectRange, Written, decompressed, object_name
from holdfast.pipeline.offsets import ChannelPartition
from holdfast.pipeline.stores import ObjectStore

DAY = 86_400_000_000
_SPOT = ("partition", "channel")
LEVEL = 1  # twice and three times the level cost more and save next to nothing on lines like ours
PARALLEL = 4
LARGEST = 256 << 20
"""Bytes of a batch that are put into lines at once: Arrow's arrays end at 2 GiB."""

Floors = Mapping[ChannelPartition, str | None]
"""What is archived already: rows up to and including these positions are passed over."""


@dataclass(slots=True)
class Draft:
    """An object that is not full yet: events of one channel on one store, of one day."""

    spot: ChannelPartition
    day: int
    positions: list[str] = field(default_factory=list)
    """The first and the last."""
    content: list[bytes] = field(default_factory=list)
    rows: int = 0

    def add(self, text: pa.BinaryArray, positions: pa.StringArray) -> None:
        """Append lines."""
        self.positions = [*self.positions[:1], positions[0].as_py(), positions[-1].as_py()]
        self.content.append(bytes(content(text)))
        self.rows += len(text)

    @property
    def text(self) -> bytes:
        """All its lines."""
        return b"".join(self.content)

    @property
    def name(self) -> str:
        """Its name, by what is in it."""
        events = ObjectRange(self.spot.channel, self.spot.partition, self.positions[0], self.positions[-1])
        return object_name(events, self.day)


class ObjectWriter:
    """Collects rows of a task and writes an object for each `batch_size` of a channel and day."""

    def __init__(self, store: ObjectStore, batch_size: int, floors: Floors) -> None:
        self._store, self._batch_size, self._floors = store, batch_size, floors
        self._drafts: dict[tuple[ChannelPartition, int], Draft] = {}

    def write(self, batches: Iterable[pa.RecordBatch]) -> Iterator[Written]:
        """Write each row into one object. An object is durable when its description is returned."""
        pending: list[Future[Written]] = []
        with ThreadPoolExecutor(PARALLEL) as pool:
            for draft in self.drafts(batches):
                pending.append(pool.submit(write_object, self._store, draft))
                if len(pending) > PARALLEL:
                    yield pending.pop(0).result()
            for each in pending:
                yield each.result()

    def drafts(self, batches: Iterable[pa.RecordBatch]) -> Iterator[Draft]:
        """Drafts to write: those that are full, and in the end the others."""
        for batch in batches:
            for part in _halved(batch):
                for spot, day, rows in self._groups(part):
                    yield from self._add(spot, day, rows)
        yield from self._drafts.values()

    def _groups(self, batch: pa.RecordBatch) -> Iterator[tuple[ChannelPartition, int, pa.Table]]:
        """A batch's lines by channel, store and day, in order, without those that are archived already."""
        columns = [encode_lines(batch), _days(batch["time"]), *(batch[name] for name in ("position", *_SPOT))]
        table = pa.table(columns, names=["text", "day", "position", *_SPOT])
        keys = table.group_by(["day", *_SPOT], use_threads=False).aggregate([])
        for day, partition, channel in zip(*(column.to_pylist() for column in keys.columns), strict=True):
            spot = ChannelPartition(partition, channel)
            rows = table if len(keys) == 1 else table.filter(_is(table, spot, day))
            floor = self._floors.get(spot)
            if floor is not None and rows["position"][0].as_py() <= floor:
                rows = rows.filter(pc.greater(rows["position"], floor))
            yield spot, day, rows

    def _add(self, spot: ChannelPartition, day: int, rows: pa.Table) -> Iterator[Draft]:
        done, text, positions = 0, _single_chunk(rows["text"]), _single_chunk(rows["position"])
        while done < len(text):
            draft = self._drafts.setdefault((spot, day), Draft(spot, day))
            count = min(self._batch_size - draft.rows, len(text) - done)
            draft.add(text.slice(done, count), positions.slice(done, count))
            done += count
            if draft.rows == self._batch_size:
                yield self._drafts.pop((spot, day))


def write_object(store: ObjectStore, draft: Draft) -> Written:
    """Compress, put if absent, describe. The same draft gives the same object again."""
    name, text = draft.name, draft.text
    data = compressed(text)
    failpoints.hit("archive.before_put")
    try:
        store.put(name, data)
    except ObjectConflict:
        # Another version of the compressor may have written the same lines in other bytes.
        data = store.get(name)
        if not _holds(name, data, text):
            raise
    failpoints.hit("archive.after_put")
    sha256 = hashlib.sha256(data).hexdigest()
    first, last = draft.positions[0], draft.positions[-1]
    return Written(name, draft.spot.channel, draft.spot.partition, first, last, draft.rows, len(data), sha256)


def compressed(text: bytes) -> bytes:
    """Lines as they are stored: always the same bytes for the same lines."""
    data: bytes = igzip.compress(text, LEVEL, mtime=0)
    return data


def _holds(name: str, data: bytes, text: bytes) -> bool:
    with suppress(Damaged):
        return decompressed(name, data, len(text) + 1) == text
    return False


def _halved(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    if batch.nbytes > LARGEST and batch.num_rows > 1:
        middle = batch.num_rows // 2
        yield from _halved(batch.slice(0, middle))
        yield from _halved(batch.slice(middle))
    elif batch.num_rows:
        yield batch


def _days(times: pa.TimestampArray) -> pa.Array:
    """Whole days since 1970, also before it."""
    return pa.array(times.cast(pa.int64()).to_numpy() // DAY)


def _is(table: pa.Table, spot: ChannelPartition, day: int) -> pa.ChunkedArray:
    same = pc.and_(pc.equal(table["partition"], spot.partition), pc.equal(table["channel"], spot.channel))
    return pc.and_(same, pc.equal(table["day"], day))


def _single_chunk(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
