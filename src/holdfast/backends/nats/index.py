"""The index of dead letters: a small message for each, by consumer, reason and fingerprint.

Entries stand in the stream in the order of the deaths, and their subjects are what is asked for: the server
finds the few that are meant among millions. It reads forward only; the latest come first all the same, by
looking at ever earlier windows of sequences.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import NamedTuple

from holdfast.backends.nats import subjects
from holdfast.backends.nats.answers import Stored
from holdfast.backends.nats.link import Link

_EACH = 4  # messages that a death takes, one of them in the index
_WIDER = 4
_NOWHERE = -1


class Entry(NamedTuple):
    """A dead letter as the index has it; `job` is its event's sequence, `seq` the entry's own."""

    ref: str
    reason: str
    fingerprint: str
    job: int
    died: int
    seq: int


def entry(message: Stored) -> Entry | None:
    """What a message of the index says; None for one that tells that its dead letter left."""
    if not message.data:
        return None
    return Entry(*subjects.indexed(message.subject), int(message.data), message.seq)


async def backwards(link: Link, subject: str, until: int, size: int) -> AsyncIterator[list[Stored]]:
    """What a subject matches up to a sequence, the newest first, in pages of at most `size`.

    A window that holds more than a page is halved until it does not; one that holds little makes the next one
    wider. So a page costs one or two reads where deaths are many, and where there were none for long a number
    that grows with the logarithm of the stream.
    """
    width, crowded = size * _EACH // 2, _NOWHERE  # what stands behind `crowded` is more than a page
    while until > 0:
        before = max(until - width, 0)
        if before <= crowded:
            before = (crowded + until) // 2
        found, pending = await link.read({"seq": before + 1, "next_by_subj": subject, "batch": size})
        if pending and found[-1].seq < until:
            crowded = before
            continue
        page = [message for message in reversed(found) if message.seq <= until]
        if page:
            yield page
        width = (until - before) * (_WIDER if len(page) * _WIDER < size else 1)
        until, crowded = before, crowded if crowded < before else _NOWHERE
