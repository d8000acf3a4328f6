"""Rows that are still in the WAL: a load may be handed on without them, and read where it is needed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.pipeline.stores import open_store
from holdfast.pipeline.wal import segments
from holdfast.pipeline.wal.batch import Segment
from holdfast.pipeline.wal.rows import names


@dataclass(frozen=True)
class StoredRows:
    """The valid rows of some segments."""

    wal: str
    """The URL of its store."""
    segments: tuple[Segment, ...]
    without: frozenset[str] = frozenset()
    """Names of rows that have failed."""
    channels: frozenset[str] | None = None
    """Only rows of these; None for all."""
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def bytes(self) -> int:
        return sum(segment.bytes for segment in self.segments)

    def only(self, channels: frozenset[str]) -> StoredRows:
        """The rows of some channels."""
        return replace(self, channels=channels)

    def of(self, part: tuple[Segment, ...]) -> StoredRows:
        """The rows of some of the segments."""
        return replace(self, segments=part)

    def read(self) -> pa.Table:
        """The rows; `Damaged` where a segment is gone, torn or changed."""
        rows = segments.read_all(open_store(self.wal, self.environment), self.segments)
        wanted = pc.is_null(rows["problem"])
        if self.without:
            wanted = pc.and_not(wanted, pc.is_in(names(rows), pa.array(sorted(self.without), pa.string())))
        if self.channels is not None:
            wanted = pc.and_(wanted, pc.is_in(rows["channel"], pa.array(sorted(self.channels), pa.string())))
        return rows.filter(wanted)
