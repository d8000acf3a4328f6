"""The commit: staged segments become one pending batch, and the cursors follow. Needs no Spark.

The order is what nothing may change: segments durable, then the batch durable, then the cursors. Whatever a
crash leaves undone follows from what is there: a segment without a batch is garbage, a batch ahead of a
cursor moves it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from holdfast import failpoints
from holdfast.model.errors import Damaged, HoldfastError, NotFound
from holdfast.pipeline.connection import Connection
from holdfast.pipeline.offsets import ChannelPartition, Offsets, is_after
from holdfast.pipeline.wal import BatchPart, StagedSegment, Wal, WalBatch
from holdfast.pipeline.wal.batch import batch_of

log = logging.getLogger(__name__)
CONSUMER = "ingest"


class CursorMove(NamedTuple):
    """One step of one cursor."""

    spot: ChannelPartition
    expected: str | None
    position: str


class IngestCursors(Protocol):
    """Where the ingest stands on each channel of each store."""

    def positions(self) -> Offsets:
        """All of them."""

    def move(self, moves: Sequence[CursorMove]) -> list[bool]:
        """Compare and swap each of them; returns which were moved."""


class StoreCursors:
    """The cursors of the stream consumer `ingest`, in the stores themselves."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def positions(self) -> Offsets:
        return {
            ChannelPartition(place, cursor.channel): cursor.position
            for place, backend in enumerate(self._connection.backends)
            for cursor in self._connection.run(backend.cursors.all())
            if cursor.name == CONSUMER
        }

    def move(self, moves: Sequence[CursorMove]) -> list[bool]:
        """Several are under way at once."""
        return self._connection.run(self._move(moves))

    async def _move(self, moves: Sequence[CursorMove]) -> list[bool]:
        async def step(each: CursorMove) -> bool:
            backend = self._connection.backends[each.spot.partition]
            done = await backend.cursors.move(each.spot.channel, CONSUMER, each.expected, each.position)
            failpoints.hit("wal.mid_cursors")
            return done

        return await asyncio.gather(*map(step, moves))


class WalCommitter:
    """The driver's part."""

    def __init__(self, wal: Wal, cursors: IngestCursors) -> None:
        self._wal, self._cursors = wal, cursors

    def recover(self) -> list[BatchPart]:
        """Let the cursors follow what is durable in the WAL; returns the parts that moved one.

        A batch that is behind a cursor and has no record any more goes into quarantine, to be repaired. One
        that was only planned is forgotten: what it was to hold is read again, maybe as part of a larger one.
        """
        positions = self._cursors.positions()
        for name in quarantine_lost(self._wal, positions):
            self._wal.forget_plan(name)
        moved = []
        for batch in self._wal.pending():
            ahead = [part for part in batch.parts if _follows(part, positions)]
            self._advance(batch.name, ahead)
            positions |= {part.spot: part.last for part in ahead}
            moved += ahead
        return moved

    def commit(self, staged: Sequence[StagedSegment]) -> WalBatch | None:
        """Make everything that was staged one pending batch; None where nothing was."""
        if not staged:
            return None
        committed = self._wal.commit(batch_of(staged, self._wal.clock()))
        self._advance(committed.name, committed.parts)
        failpoints.hit("wal.after_cursor")
        return committed

    def _advance(self, name: str, parts: Sequence[BatchPart]) -> None:
        """Move the cursors to the ends of parts, unless they are there or beyond: all up to there is in the
        WAL."""
        moves = [CursorMove(part.spot, part.after, part.last) for part in parts]
        begins = {part.spot: part.after for part in parts}
        while moves:
            done = self._cursors.move(moves)
            left = [each for each, moved in zip(moves, done, strict=True) if not moved]
            positions = self._cursors.positions() if left else {}
            moves = []
            for spot, _, last in left:
                if not is_after(last, positions[spot]):
                    continue
                if _leaves_gap(begins[spot], positions[spot]):
                    raise HoldfastError(
                        f"the cursor of {CONSUMER!r} on {spot.channel!r} stands at {positions[spot]}, before "
                        f"what batch {name} starts after; somebody set it back. Start again to read from it"
                    )
                moves.append(CursorMove(spot, positions[spot], last))


def quarantine_lost(wal: Wal, positions: Offsets) -> list[str]:
    """Put batches into quarantine that have a plan and no record, though a cursor has passed them: somebody
    removed it. Returns those that no cursor has passed; a driver may be about to make them pending.

    `positions` are older than this call: so a batch whose record is just being written is none of the former.
    """
    ahead = []
    for name in wal.lost():
        try:
            parts = wal.parts(name)
        except (Damaged, NotFound) as damage:
            log.error("the plan of batch %s: %s", name, damage)
            continue
        if all(is_after(part.last, positions.get(part.spot)) for part in parts):
            ahead.append(name)
        else:
            # With its ranges: a driver that looked before the cursor moved may forget the plan even now.
            wal.quarantine(name, f"the record of batch {name} is missing, and a cursor has passed it", parts)
    return ahead


def _follows(part: BatchPart, positions: Offsets) -> bool:
    """Whether a cursor is to move to the end of a part."""
    if part.spot not in positions or not is_after(part.last, positions[part.spot]):
        return False
    return not _leaves_gap(part.after, positions[part.spot])


def _leaves_gap(after: str | None, cursor: str | None) -> bool:
    """Whether events between the cursor and a part that starts after `after` would be passed over."""
    return after is not None and is_after(after, cursor)
