"""The events' content: 200 bytes of text that begin with the time of the publish call."""

from __future__ import annotations

import time

DIGITS = 20
SIZE = 200
PAD = (b"the quick brown fox jumps over the lazy dog; " * 5)[: SIZE - DIGITS]


def stamped() -> bytes:
    """A payload that knows when it was published."""
    return b"%0*d" % (DIGITS, time.time_ns()) + PAD


def sent_at(payload: bytes | str) -> int:
    """The nanoseconds that `stamped` wrote."""
    return int(payload[:DIGITS])
