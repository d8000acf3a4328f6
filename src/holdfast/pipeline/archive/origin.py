"""The origin of an archive: the stores that its events come from, as far as they still have them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from holdfast.model.names import selects
from holdfast.pipeline.archive.policy import ARCHIVER
from holdfast.pipeline.connection import Connection
from holdfast.pipeline.ingest.staging import read_range
from holdfast.pipeline.offsets import Spot
from holdfast.pipeline.planner import EVERYTHING


@dataclass(frozen=True)
class Origin:
    """The channels of one archive in their stores."""

    connection: Connection
    consumer: str = ARCHIVER
    streams: Sequence[str] = ()
    """Patterns of channels that belong into the archive, whether it has any of them or not."""

    elsewhere: Sequence[str] = ()
    """Patterns of channels that belong into another one."""

    def cursors(self) -> dict[Spot, str]:
        """Up to where events were archived, for every channel that the archiver has begun."""
        return {
            Spot(partition, cursor.channel): cursor.position
            for partition, backend in enumerate(self.connection.backends)
            for cursor in self.connection.run(backend.cursors())
            if cursor.name == self.consumer and cursor.position is not None
        }

    def belongs(self, spot: Spot) -> bool:
        """Whether a channel is to be in the archive."""
        return any(selects(stream, spot.channel) for stream in self.streams)

    def unassigned(self, spot: Spot) -> bool:
        """Whether nothing says in which archive a channel is to be."""
        return not any(selects(stream, spot.channel) for stream in (*self.streams, *self.elsewhere))

    def extent(self, spot: Spot) -> tuple[str, str]:
        """After which and up to which position the log can be read; empty text where there is none."""
        if spot.partition >= len(self.connection.backends):
            return "", ""
        found = self.connection.run(self.connection.backends[spot.partition].extent(spot.channel))
        return found.trimmed or "", found.last or ""

    def count(self, spot: Spot, after: str | None, until: str) -> int:
        """How many events the log has after one position, up to and including another."""
        backend = self.connection.backends[spot.partition]
        cuts = backend.cuts(spot.channel, after, EVERYTHING, EVERYTHING, until)
        return sum(cut.rows for cut in self.connection.run(cuts))

    def rows(self, spot: Spot, after: str | None, until: str) -> Iterator[pa.RecordBatch]:
        """The events between two positions; `DataLost` where some were trimmed."""
        return read_range(self.connection, spot, after, until)
