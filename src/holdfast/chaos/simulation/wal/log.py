"""The log that the WAL is filled from, and the cursor on it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from holdfast.chaos.simulation.actors import Process
from holdfast.chaos.simulation.stage import Stage
from holdfast.model.log import Page
from holdfast.model.position import format_position
from holdfast.pipeline.ingest.commit import Move
from holdfast.pipeline.offsets import Offsets, Spot

SPOT = Spot(0, "orders")
SOURCE = "shop"


class Published(NamedTuple):
    """One event of the log."""

    position: str
    id: str
    data: bytes


class Log:
    """Events in order. An id may come again, with the same data or with other data."""

    def __init__(self) -> None:
        self.events: list[Published] = []

    def append(self, name: str, data: bytes) -> None:
        """One more event."""
        self.events.append(Published(format_position(1, len(self.events) + 1), name, data))

    def after(self, position: str | None, limit: int) -> list[Published]:
        """The next ones."""
        return [each for each in self.events if position is None or each.position > position][:limit]

    def within(self, first: str, last: str) -> list[Published]:
        """A stretch of it."""
        return [each for each in self.events if first <= each.position <= last]


def page(events: Sequence[Published]) -> Page:
    """Events as a store hands them out in bulk."""
    count = len(events)
    return Page(
        [each.position for each in events],
        [each.id for each in events],
        [SOURCE] * count,
        ["event"] * count,
        [None] * count,
        [0] * count,
        [{}] * count,
        [each.data for each in events],
    )


class MemoryCursors:
    """Where the ingest stands; moved by compare and swap."""

    def __init__(self, stage: Stage, moved: Callable[[str], None]) -> None:
        self._stage, self._moved = stage, moved
        self.at: str | None = None

    def positions(self) -> Offsets:
        """See the contract."""
        Process.turn("read the cursor")
        return {SPOT: self.at}

    def move(self, moves: Sequence[Move]) -> list[bool]:
        """See the contract."""
        return [self._move(each.expected, each.position) for each in moves]

    def _move(self, expected: str | None, position: str) -> bool:
        if Process.turn("move the cursor"):
            self._stage.refuse("move the cursor")
        moves = self.at == expected and (expected is None or position > expected)
        if moves:
            self.at = position
            self._stage.say(f"to {position}")
            self._moved(position)
        else:
            self._stage.count("cursor refused")
        if Process.turn("answer to move the cursor"):
            self._stage.lose("move the cursor")
        return moves
