"""Stretches of the log: how many events they hold, and which is the n-th, without reading them.

The server answers a read with how many messages follow, so that one small read at a sequence tells which
event stands there and, less what stands beyond the stretch, its number. The rest is guessing well.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from typing import NamedTuple

from holdfast.backends.nats.answers import Stored
from holdfast.backends.nats.codec import data_size
from holdfast.backends.nats.entries import Entries
from holdfast.backends.nats.fates import Fates

_AT_ONCE = 16
_TRIES = 100


class Spot(NamedTuple):
    """A sequence, and how many events of the stretch stand up to and including it."""

    seq: int
    number: int


class Stretch:
    """What stands behind one sequence, up to and including another one; nothing is under way in it."""

    def __init__(self, entries: Entries, channel: str, first: int, last: int, aborted: list[int]) -> None:
        self._entries, self._channel, self._aborted = entries, channel, aborted
        self._first, self._last = first, last
        self._messages = self._beyond = -1
        self._turns = asyncio.Semaphore(_AT_ONCE)
        self.sizes: list[int] = []
        """How large the events are that were looked at on the way."""

    @property
    def count(self) -> int:
        """How many events there are."""
        return self._messages - len(self._aborted)

    async def measure(self) -> None:
        """Count, once, before anything is looked for."""
        _, self._messages = await self._look(self._first)

    async def _look(self, after: int) -> tuple[Stored | None, int]:
        """The first message after a sequence, and how many there are from it to the end of the stretch.

        What is appended meanwhile counts as well, so this is repeated until nothing was.
        """
        message, count = None, 0
        async with self._turns:
            for _ in range(_TRIES):
                known = self._beyond
                message, count = await self._entries.first(self._channel, after)
                self._beyond = await self._entries.count(self._channel, self._last)
                if known == self._beyond:
                    break
        return message, count - self._beyond

    async def find(self, number: int, below: int = 0, above: int = 0) -> Spot:
        """Some event that is not far from the `number`-th: at most so many below or above it."""
        # The wanted one is behind `low`, and not behind `high`.
        low, high, halve = Spot(self._first, 0), Spot(self._last, self.count), False
        if number >= high.number:
            return high
        while low.number < number <= high.number and low.seq < high.seq:
            share = 0.5 if halve else (number - 1 - low.number) / (high.number - low.number)
            guess = min(low.seq + int((high.seq - low.seq) * share), high.seq - 1)
            spot = await self._probe(guess)
            if number - below <= spot.number <= number + above:
                return spot
            if spot.number < number:
                low = spot
            else:
                high = Spot(guess, spot.number - 1)
            halve = not halve
        return high  # the counts no longer agree: somebody trimmed meanwhile

    async def _probe(self, seq: int) -> Spot:
        """The first message behind a sequence of the stretch."""
        message, left = await self._look(seq)
        if message is None:  # trimmed under our eyes
            return Spot(self._last, self.count)
        self.sizes.append(data_size(message))
        passed = bisect_right(self._aborted, message.seq)
        return Spot(message.seq, self._messages - left + 1 - passed)


async def stretch(entries: Entries, fates: Fates, channel: str, first: int, last: int) -> Stretch:
    """A stretch that has been measured."""
    made = Stretch(entries, channel, first, last, await fates.aborted(channel, first, last))
    await made.measure()
    return made
