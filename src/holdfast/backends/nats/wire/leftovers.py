"""Leftovers: messages that others have replaced, and that are there again after the server's power was cut.

What replaces the messages of its subject is on the disk before it is acknowledged. That they are gone is on
the disk only when the next message is. So the last ones that were replaced come back, behind what replaced
them. Nobody reads them there, but where that has a time to live, as the empty message of an ended job has,
they would be in its place one day.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import orjson

from holdfast.backends.nats.wire import stream, subjects
from holdfast.backends.nats.wire.batches import MOST
from holdfast.backends.nats.wire.connection import NatsConnection
from holdfast.backends.nats.wire.parser import StoredMessage

_NEWEST = 2 * MOST  # the last batch of each of some processes
_AT_ONCE = 500


async def remove(connection: NatsConnection, last: int) -> int:
    """Look at the newest messages of a stream that ends at `last`; returns how many it has removed."""
    start = max(last - _NEWEST, 0) + 1
    query = {"seq": start, "next_by_subj": subjects.OURS, "batch": _NEWEST}
    found = (await connection.read(query))[0]
    newest = {subject: each.seq for each in found for subject in _replaced_by(each)}
    leftovers = {each.seq for each in found if each.seq < newest.get(each.subject, 0)}
    wanted = list(newest) if start > 1 else []
    for at in range(0, len(wanted), _AT_ONCE):
        page = wanted[at : at + _AT_ONCE]
        older = {"multi_last": page, "batch": len(page), "up_to_seq": start - 1}
        leftovers |= {each.seq for each in (await connection.read(older))[0]}
    for each in found:
        ref, seqs = _departed(each)
        if seqs:
            listed = await connection.last([subjects.index(ref, seq=seq) for seq in seqs])
            leftovers |= {entry.seq for entry in listed if entry.seq < each.seq}
    await asyncio.gather(*(stream.delete(connection, seq) for seq in leftovers))
    return len(leftovers)


def _replaced_by(message: StoredMessage) -> Iterator[str]:
    """Yield the subjects of which nothing older counts. What stood in its place may have expired by now."""
    match message.subject.split("."):
        case ["HF", "E" | "D", ref, seq] if message.data:
            yield subjects.job(ref, seq)
    ref, seqs = _departed(message)
    for departed in seqs:
        yield subjects.dead(ref, departed)
    if message.subject.startswith(subjects.REPLACED):
        yield message.subject


def _departed(message: StoredMessage) -> tuple[str, list[int]]:
    """Return a consumer and jobs that have left dead, if this is what a message tells."""
    _, is_told, ref = message.subject.rpartition(subjects.left(""))
    return ref, orjson.loads(message.data) if is_told else []
