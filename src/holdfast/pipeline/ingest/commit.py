"""The commit: staged segments become pending batches, and the cursor follows. Needs no Spark.

The order is what nothing may change: segments durable, then the batch durable, then the cursor. Whatever a
crash leaves undone follows from what is there: a segment without a batch is garbage, a batch ahead of the
cursor moves it.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

from holdfast import failpoints
from holdfast.contracts import Backend
from holdfast.model.errors import Damaged, HoldfastError
from holdfast.pipeline.connection import Connection
from holdfast.pipeline.offsets import Offsets, Spot, is_after
from holdfast.pipeline.wal import Batch, BatchKey, Segment, Wal

log = logging.getLogger(__name__)
CONSUMER = "ingest"


class Staged(NamedTuple):
    """A segment, and which part of the log it holds."""

    spot: Spot
    first: str
    last: str
    segment: Segment


class Cursors(Protocol):
    """Where the ingest stands on each channel of each store."""

    def positions(self) -> Offsets:
        """All of them."""

    def move(self, spot: Spot, expected: str | None, position: str) -> bool:
        """Compare and swap."""


class StoreCursors:
    """The cursors of the stream consumer `ingest`, in the stores themselves."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def positions(self) -> Offsets:
        """See the contract."""
        return {
            Spot(place, cursor.channel): cursor.position
            for place, backend in enumerate(self._connection.backends)
            for cursor in self._connection.run(backend.cursors())
            if cursor.name == CONSUMER
        }

    def move(self, spot: Spot, expected: str | None, position: str) -> bool:
        """See the contract."""
        backend: Backend = self._connection.backends[spot.partition]
        return self._connection.run(backend.move(spot.channel, CONSUMER, expected, position))


class Committer:
    """The driver's part."""

    def __init__(self, wal: Wal, cursors: Cursors) -> None:
        self._wal, self._cursors = wal, cursors

    def recover(self) -> list[Batch]:
        """Let the cursors follow what is durable in the WAL; answers the batches that moved one."""
        survey, positions = self._wal.survey(), self._cursors.positions()
        keys = map(BatchKey.parse, [*survey.pending, *survey.confirmed])
        moved = []
        for key in sorted(keys, key=lambda key: (key.partition, key.channel, key.first)):
            spot = Spot(key.partition, key.channel)
            if spot in positions and is_after(key.last, positions[spot]):
                try:
                    batch = self._wal.batch(key.name)
                except Damaged as damage:  # what lies beyond the cursor is read again
                    log.error("the cursor of %s cannot follow batch %s: %s", key.channel, key.name, damage)
                    continue
                if not _leaves_gap(batch, positions[spot]):
                    self._advance(batch)
                    positions[spot] = key.last
                    moved.append(batch)
        return moved

    def commit(self, staged: Sequence[Staged], starts: Offsets) -> list[Batch]:
        """Make what was staged after `starts` pending, one batch for each channel of each store."""
        batches = []
        for spot, parts in sorted(_by_spot(staged).items()):
            standing = self._wal.commit(self._batch(spot, parts, starts[spot]))
            self._advance(standing)
            failpoints.hit("wal.after_cursor")
            batches.append(standing)
        return batches

    def _batch(self, spot: Spot, parts: list[Staged], after: str | None) -> Batch:
        parts.sort(key=lambda part: part.first)
        key = BatchKey(spot.partition, spot.channel, parts[0].first, max(part.last for part in parts))
        return Batch(key, after, tuple(part.segment for part in parts), self._wal.clock())

    def _advance(self, batch: Batch) -> None:
        """Move the cursor to the batch's end, unless it is there or beyond: all up to there is in the WAL."""
        spot, last = Spot(batch.key.partition, batch.key.channel), batch.key.last
        expected = batch.after
        while not self._cursors.move(spot, expected, last):
            expected = self._cursors.positions()[spot]
            if not is_after(last, expected):
                return
            if _leaves_gap(batch, expected):
                raise HoldfastError(
                    f"the cursor of {CONSUMER!r} on {spot.channel!r} stands at {expected}, before what batch "
                    f"{batch.name} starts after; somebody set it back. Start again to read from there"
                )


def _leaves_gap(batch: Batch, cursor: str | None) -> bool:
    """Whether events between the cursor and the batch would be passed over."""
    return batch.after is not None and is_after(batch.after, cursor)


def _by_spot(staged: Iterable[Staged]) -> dict[Spot, list[Staged]]:
    found: dict[Spot, list[Staged]] = defaultdict(list)
    for each in staged:
        found[each.spot].append(each)
    return found
