"""Idempotency keys: which events a channel holds already."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace

import orjson

from holdfast.backends.nats.answers import Stored
from holdfast.backends.nats.batch import Message, state
from holdfast.backends.nats.fates import Fates
from holdfast.backends.nats.store import Store
from holdfast.model.errors import Unavailable

_PAGE = 500
_PAUSE, _TURNS = 0.05, 700


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of a key. `seq` is None where its event was never committed; a publish may then replace
    the key at `revision`. Without a digest it is a foreign client's event, whose content nobody compares."""

    revision: int
    seq: int | None
    digest: str


def key_message(
    subject: str, digest: str, step: int, publish: str | None = None, expect: int | None = None
) -> Message:
    """A key whose event stands `step` messages behind it in the same batch."""
    return state(subject, orjson.dumps([digest, step, publish]), expect)


def foreign_key(subject: str, seq: int, expect: int) -> Message:
    """A key for an event that another client has appended."""
    return state(subject, orjson.dumps(["", 0, None, seq]), expect)


class Keys:
    """Looks keys up in bulk."""

    def __init__(self, store: Store, fates: Fates) -> None:
        self._store, self._fates = store, fates

    async def find(self, channel: str, keys: Sequence[str]) -> dict[str, Known]:
        """What is known of each key, without those that are not there."""
        pages = [keys[at : at + _PAGE] for at in range(0, len(keys), _PAGE)]
        reads = [self._store.link.read({"multi_last": page, "batch": _PAGE}) for page in pages]
        found = [message for messages, _ in await asyncio.gather(*reads) for message in messages]
        judged = await asyncio.gather(*(self._judge(channel, message) for message in found))
        return {message.subject: known for message, known in zip(found, judged, strict=True)}

    async def _judge(self, channel: str, message: Stored) -> Known:
        digest, step, publish, *foreign = orjson.loads(message.data)
        known = Known(message.seq, foreign[0] if foreign else message.seq + step, digest)
        if foreign:
            return known
        if publish is not None:
            committed = await self._outcome(publish, channel, message)
            return known if committed else replace(known, seq=None)
        # A server that died in the middle of a batch may have kept the key without its event. Then something
        # else stands in its place, or nothing yet; one that was trimmed since leaves its place empty.
        query = {"seq": message.seq + step, "next_by_subj": ">", "batch": 1}
        following, _ = await self._store.link.read(query)
        there = following[0] if following else None
        kept = there is not None and (there.seq != known.seq or there.subject == channel)
        return known if kept else replace(known, seq=None)

    async def _outcome(self, publish: str, channel: str, message: Stored) -> bool:
        """Another publisher may be in the middle of it: then its end is waited for."""
        for _ in range(_TURNS):
            fate = await self._fates.one(channel, publish, message.stamp)
            if fate is not None:
                return fate
            await asyncio.sleep(_PAUSE)
        raise Unavailable("the same events are being published by somebody else; try again")
