"""Leftovers: messages that others have replaced, and that are there again after the server's power was cut.

What replaces the messages of its subject is on the disk before it is acknowledged. That they are gone is on
the disk only when the next message is. So the last ones that were replaced come back, behind what replaced
them. Nobody reads them there, but where that has a time to live, as the empty message of an ended job has,
they would be in its place one day.
"""

from __future__ import annotations

import asyncio

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
    newest = {each.subject: each.seq for each in found if each.subject.startswith(subjects.REPLACED)}
    replaced = {each.seq for each in found if each.seq < newest.get(each.subject, 0)}
    wanted = list(newest) if start > 1 else []
    for at in range(0, len(wanted), _AT_ONCE):
        page = wanted[at : at + _AT_ONCE]
        older = {"multi_last": page, "batch": len(page), "up_to_seq": start - 1}
        replaced |= {each.seq for each in (await connection.read(older))[0]}
    for each in found:
        if each.subject.startswith(subjects.left("")):
            replaced |= await _left(connection, each)
    await asyncio.gather(*(stream.delete(connection, seq) for seq in replaced))
    return len(replaced)


async def _left(connection: NatsConnection, message: StoredMessage) -> set[int]:
    """Return dead letters that are there although jobs have left them: nothing stands in their place."""
    ref = message.subject.removeprefix(subjects.left(""))
    seqs: list[int] = orjson.loads(message.data)
    places = [subjects.dead(ref, seq) for seq in seqs] + [subjects.index(ref, seq=seq) for seq in seqs]
    there = await connection.last(places)
    return {each.seq for each in there if each.seq < message.seq and each.data}
