"""Floors: up to where each channel was trimmed.

Whoever begins to need a log, a new consumer of either kind, writes the floor again in the same batch. So a
trim that was judged without it is stale, and is judged anew.
"""

from __future__ import annotations

from typing import NamedTuple

from holdfast.backends.nats import subjects
from holdfast.backends.nats.batch import Message, state
from holdfast.backends.nats.store import Store


class Floor(NamedTuple):
    """Every event of a channel up to `seq` is gone, or is about to be; 0 where none is."""

    channel: str
    seq: int
    revision: int

    def moved(self, seq: int) -> Message:
        """The floor at another place, provided that nobody wrote it since."""
        return state(subjects.trimmed(self.channel), b"%d" % seq, self.revision)

    def again(self) -> Message:
        """The same floor, provided that nobody wrote it since."""
        return self.moved(self.seq)


async def floor(store: Store, channel: str) -> Floor:
    """The floor of a channel."""
    found = await store.link.last([subjects.trimmed(channel)])
    return Floor(channel, int(found[0].data), found[0].seq) if found else Floor(channel, 0, 0)
