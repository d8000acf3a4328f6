"""Compact: a day's objects as Parquet, checked row by row against the objects.

`compact/{domain}/{YYYY}/{MM}/{DD}/….parquet` beside `archive/`, in the same store. The objects stay: the
archive is still what the manifests say.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import date
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.model.errors import NotFound, ObjectConflict
from holdfast.pipeline.archive.lines import SCHEMA, decode_lines
from holdfast.pipeline.archive.manifests import intact_catalog
from holdfast.pipeline.archive.objects import Written, day_folder, text_of
from holdfast.pipeline.stores import ObjectStore, cloud_environment, open_store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS = 1_000_000
"""Rows to a Parquet file, about."""


class Piece(NamedTuple):
    """One Parquet file and the objects that it is made of."""

    name: str
    objects: tuple[Written, ...]


class Compacted(NamedTuple):
    """A Parquet file that was read back, and holds exactly the rows of its objects."""

    name: str
    objects: int
    rows: int
    bytes: int


def pieces(objects: Iterable[Written], rows: int = ROWS) -> Iterator[Piece]:
    """Which objects go together: neighbours of one channel and store."""
    ordered = sorted(objects, key=lambda each: (each.spot, each.first, each.object))
    for _, group in groupby(ordered, key=lambda each: each.spot):
        taken: list[Written] = []
        for each in group:
            if taken and sum(other.rows for other in taken) + each.rows > rows:
                yield _piece(taken)
                taken = []
            taken.append(each)
        yield _piece(taken)


def _piece(objects: list[Written]) -> Piece:
    folder = objects[0].object.rpartition("/")[0].replace("archive/", "compact/", 1)
    first, last = objects[0].first, max(each.last for each in objects)
    name = f"{objects[0].channel}-p{objects[0].partition:03}-{first}_{last}.parquet"
    return Piece(f"{folder}/{name}", tuple(objects))


def compact(spark: SparkSession, source: str, day: date) -> list[Compacted]:
    """Write and check a day's Parquet files. Raises `NotFound` where the archive has nothing of that day."""
    catalog = intact_catalog(open_store(source))
    todo = list(pieces(catalog.of_day(day_folder(day))))
    if not todo:
        raise NotFound(f"{source} has no committed objects of {day}; look at holdfast archive verify")
    work = CompactPieces(source, cloud_environment())
    done = spark.sparkContext.parallelize(todo, len(todo)).map(work).collect()
    return sorted(Compacted(*each) for each in done)


@dataclass(frozen=True)
class CompactPieces:
    """Runs in tasks, a piece at a time."""

    source: str
    environment: Mapping[str, str]

    def __call__(self, piece: Piece) -> Compacted:
        """Write the file, read it back, compare."""
        return compact_piece(open_store(self.source, self.environment), piece)


def compact_piece(store: ObjectStore, piece: Piece) -> Compacted:
    """One Parquet file. It is compared as the store gives it back; an unequal one is removed."""
    rows = _rows(store, piece.objects)
    buffer = io.BytesIO()
    pq.write_table(rows, buffer, compression="zstd")
    with suppress(ObjectConflict):  # written by another version: its content is checked below
        store.put(piece.name, buffer.getvalue())
    data = store.get(piece.name)
    if not pq.read_table(io.BytesIO(data)).cast(SCHEMA).equals(rows):
        store.delete(piece.name)
        raise ObjectConflict(
            f"{piece.name} did not hold the rows of its objects and was removed; run it again"
        )
    return Compacted(piece.name, len(piece.objects), rows.num_rows, len(data))


def _rows(store: ObjectStore, objects: Iterable[Written]) -> pa.Table:
    batches = [decode_lines(each.object, each.partition, text_of(store, each)) for each in objects]
    return pa.Table.from_batches(batches, schema=SCHEMA).combine_chunks()
