"""The inputs of a reconciliation: a channel's log, archive, warehouse and failed records, and their bounds.

    floor │ trimmed, proven by manifests │ in the log │ until

The bounds say which range of each log is compared, and what may still be on its way. They are read in this
order, since the system is running: first where the log ends, then the cursors, then the WAL, and only then
the inputs. So whatever is at or below a cursor must be found.
"""

from __future__ import annotations

import io
import secrets
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import reduce
from itertools import pairwise
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.contracts import Backend
from holdfast.model.errors import Damaged, NotFound
from holdfast.pipeline.archive.lines import object_frame
from holdfast.pipeline.archive.manifests import Manifest, intact_catalog, manifest_folder
from holdfast.pipeline.archive.objects import Written, day_folder
from holdfast.pipeline.connection import Connection
from holdfast.pipeline.ingest.commit import CONSUMER
from holdfast.pipeline.ingest.plan import IngestPlan
from holdfast.pipeline.offsets import later
from holdfast.pipeline.reconcile.records import COLUMNS, IDENTIFIED, Identify, ReadArchive, ReadFailed
from holdfast.pipeline.reconcile.report import Difference
from holdfast.pipeline.stores import ObjectStore, cloud_environment, open_store
from holdfast.pipeline.wal import BatchPart, Wal
from holdfast.pipeline.warehouse import Warehouse

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BEFORE_ALL, AFTER_ALL = "", "~"
"""Sort before and after every position."""
ByPartition = dict[int, str]
_FOLDER = "scratch"
_STAMP = "%Y%m%dT%H%M%SZ"
_STALE = timedelta(days=1)
LOG, ARCHIVE, WAREHOUSE, FAILED = "log", "archive", "warehouse", "failed"


@dataclass(frozen=True, slots=True)
class Inputs:
    """Where the log, the archive and the ingest of a channel are."""

    channel: str
    urls: Sequence[str]
    archive: str | None = None
    """The object store of its archive. None: nobody archives it."""
    archiver: str = "archiver"
    """The consumer under whose cursor it is archived."""
    plan: IngestPlan | None = None
    """None: nobody ingests it."""
    namespace: str = "gbe"
    """Under which the report is kept."""

    def wal(self) -> Wal | None:
        """The ingest's WAL."""
        return None if self.plan is None else Wal(open_store(self.plan.wal.path), self.plan.wal)


@dataclass(frozen=True, slots=True)
class Bounds:
    """By partition. What an input lacks is no loss where it is behind or pending."""

    until: ByPartition
    archived: ByPartition
    """The archiver's cursor."""
    ingested: ByPartition
    """The ingest's cursor."""
    pending: Sequence[BatchPart] = ()


@dataclass(frozen=True, slots=True)
class Chain:
    """The manifests of a channel, store by store."""

    manifests: Sequence[Manifest] = ()

    @property
    def objects(self) -> list[Written]:
        return [each for manifest in self.manifests for each in manifest.objects]

    def floors(self, trimmed: ByPartition) -> ByPartition:
        """Up to where neither the log nor the manifests prove anything."""
        return {partition: min(end, self._begin(partition, end)) for partition, end in trimmed.items()}

    def gaps(self, trimmed: ByPartition) -> Iterator[Difference]:
        """Ranges that were trimmed, and that no manifest covers although the archive had begun."""
        for partition, after, _, name in self._breaks(trimmed):
            yield Difference("archive", "gap", partition, after, None, name)

    def unproven(self, trimmed: ByPartition, unreadable: Collection[str]) -> list[tuple[int, str, str]]:
        """Partitions with first and last positions of which neither log nor archive say what was published:
        gaps, and objects that cannot be read."""
        found = [(partition, after + " ", until) for partition, after, until, _ in self._breaks(trimmed)]
        for each in self.objects:
            end = min(each.last, trimmed.get(each.partition, BEFORE_ALL))
            if each.object in unreadable and each.first <= end:
                found.append((each.partition, each.first, end))
        return found

    def _breaks(self, trimmed: ByPartition) -> Iterator[tuple[int, str, str, str]]:
        """Partition, after and up to which position, and the manifest that follows, or where it should be."""
        for partition, end in trimmed.items():
            chain = [each for each in self.manifests if each.spot.partition == partition]
            for one, other in pairwise(chain):
                if (other.after or BEFORE_ALL) > one.last and one.last < end:
                    yield partition, one.last, other.after or BEFORE_ALL, other.name
            if chain and chain[-1].last < end:
                yield partition, chain[-1].last, end, manifest_folder(chain[-1].spot.channel, partition)

    def _begin(self, partition: int, default: str) -> str:
        begins = [each.after or BEFORE_ALL for each in self.manifests if each.spot.partition == partition]
        return min(begins, default=default)


def read_bounds(connection: Connection, inputs: Inputs) -> Bounds:
    """Take them now, before the inputs are read."""
    until = log_ends(connection, inputs.channel)
    cursors = {
        partition: connection.run(_cursors(store, inputs.channel))
        for partition, store in enumerate(connection.backends)
    }
    wal = inputs.wal()
    pending = [] if wal is None else wal.pending()
    return Bounds(
        until,
        {partition: found.get(inputs.archiver, BEFORE_ALL) for partition, found in cursors.items()},
        {partition: found.get(CONSUMER, BEFORE_ALL) for partition, found in cursors.items()},
        [part for batch in pending for part in batch.parts if part.channel == inputs.channel],
    )


def log_ends(connection: Connection, channel: str) -> ByPartition:
    """Where each store's log ends now."""
    return {
        partition: connection.run(_end(store, channel)) for partition, store in enumerate(connection.backends)
    }


def trim_marks(connection: Connection, channel: str) -> ByPartition:
    """Up to where each store's log is gone."""
    found = {
        partition: connection.run(store.log.extent(channel)).trimmed
        for partition, store in enumerate(connection.backends)
    }
    return {partition: position for partition, position in found.items() if position is not None}


def read_chain(inputs: Inputs) -> Chain:
    """The manifests of the channel. One that cannot be read is an error: nothing could be proven."""
    if inputs.archive is None:
        return Chain()
    return Chain(intact_catalog(open_store(inputs.archive), inputs.channel).manifests)


async def _end(store: Backend, channel: str) -> str:
    """An empty log bounds nothing: what others have of it is surplus."""
    extent = await store.log.extent(channel)
    return later(extent.last, extent.trimmed) or AFTER_ALL


async def _cursors(store: Backend, channel: str) -> dict[str, str]:
    return {cursor.name: cursor.position or BEFORE_ALL for cursor in await store.cursors.all(channel)}


@contextmanager
def read_inputs(
    spark: SparkSession,
    inputs: Inputs,
    objects: Sequence[Written],
    warehouse: Warehouse | None,
    day: date | None,
) -> Iterator[DataFrame]:
    """The records of all inputs, each with its `side`, for the length of a block.

    `objects` are those of the archive. Without a warehouse, its rows are left out.
    """
    from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

    with ExitStack() as stack:
        frames = {LOG: _log(spark, inputs, day), ARCHIVE: _archive(spark, inputs, objects, day)}
        wal = inputs.wal()
        if wal is not None:
            frames[FAILED] = _failed(spark, wal, inputs.channel, day)
        if wal is not None and warehouse is not None:
            rows = warehouse.events(inputs.channel, day)
            shared = scratch(spark, wal.settings.path, cloud_environment(), rows, COLUMNS)
            frames[WAREHOUSE] = stack.enter_context(shared)
        named = [each.withColumn("side", F.lit(side)) for side, each in frames.items()]
        yield reduce(lambda one, other: one.unionByName(other), named)


def _log(spark: SparkSession, inputs: Inputs, day: date | None) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

    # What others have of a channel that no store has is to be named as surplus.
    options = {"url": ",".join(inputs.urls), "channel": inputs.channel, "failOnMissingChannel": "false"}
    rows = spark.read.format("holdfast").options(**options).load()
    if day is not None:
        rows = rows.where(F.to_date("time") == F.lit(day))
    # Of the data only its MD5 goes on, computed where it is.
    named = rows.withColumn("content", F.md5("data")).select(*IDENTIFIED)
    return named.mapInArrow(Identify(inputs.channel), COLUMNS)


def _archive(spark: SparkSession, inputs: Inputs, objects: Sequence[Written], day: date | None) -> DataFrame:
    part = "" if day is None else f"/{day_folder(day)}/"
    objects = [each for each in objects if part in each.object]
    if inputs.archive is None or not objects:
        return spark.createDataFrame([], COLUMNS)
    return object_frame(spark, objects).mapInArrow(ReadArchive(inputs.archive, cloud_environment()), COLUMNS)


def _failed(spark: SparkSession, wal: Wal, channel: str, day: date | None) -> DataFrame:
    batches = {name.partition("/")[0] for name in wal.records.names("failed")}
    names = [(name,) for name in sorted(batches) if _may_hold(wal, name, channel)]
    if not names:
        return spark.createDataFrame([], COLUMNS)
    read = ReadFailed(wal.settings.path, cloud_environment(), channel, day)
    return spark.createDataFrame(names, "name string").mapInArrow(read, COLUMNS)


def _may_hold(wal: Wal, batch: str, channel: str) -> bool:
    """Whether failures of a batch may be of a channel. A batch that is gone has left their names."""
    try:
        return any(part.channel == channel for part in wal.parts(batch))
    except NotFound:
        return any(name.startswith(f"{channel}@") for name in wal.failed_names(batch))
    except Damaged:
        return True  # the damage is reported when it is read


@contextmanager
def scratch(
    spark: SparkSession,
    path: str,
    environment: Mapping[str, str],
    rows: Iterable[pa.RecordBatch],
    columns: str,
) -> Iterator[DataFrame]:
    """Rows of another engine as a frame, for the length of a block, through files that executors can read.

    `path` is the store, `columns` Spark's schema of the rows.
    """
    store = open_store(path)
    _remove_stale_files(store)
    folder = f"{_FOLDER}/{datetime.now(UTC).strftime(_STAMP)}-{secrets.token_hex(8)}"
    names: list[str] = []
    try:
        for batch in rows:
            names.append(f"{folder}/{len(names):06}.parquet")
            store.put(names[-1], _encode(batch))
        frame = spark.createDataFrame([(name,) for name in names], "name string")
        yield frame.repartition(max(1, len(names))).mapInArrow(ReadScratch(path, environment), columns)
    finally:
        for name in names:
            store.delete(name)


@dataclass(frozen=True)
class ReadScratch:
    """For `mapInArrow`: names of files in, their rows out."""

    path: str
    environment: Mapping[str, str]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Read the files of a task."""
        store = open_store(self.path, self.environment)
        for batch in batches:
            for name in batch["name"].to_pylist():
                yield from pq.read_table(io.BytesIO(store.get(name))).to_batches()


def _encode(batch: pa.RecordBatch) -> bytes:
    buffer = io.BytesIO()
    pq.write_table(pa.Table.from_batches([batch]), buffer, compression="zstd", compression_level=1)
    return buffer.getvalue()


def _remove_stale_files(store: ObjectStore) -> None:
    """What jobs that were killed have left, a day ago or earlier."""
    limit = (datetime.now(UTC) - _STALE).strftime(_STAMP)
    for entry in store.list(_FOLDER):
        if entry.name.split("/")[1] < limit:
            store.delete(entry.name)
