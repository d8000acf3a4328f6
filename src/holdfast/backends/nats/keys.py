"""Idempotency keys: which events a channel holds already."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace

import orjson

from holdfast.backends.nats import codec, subjects
from holdfast.backends.nats.answers import Stored
from holdfast.backends.nats.batch import Message, state
from holdfast.backends.nats.fates import Fates
from holdfast.backends.nats.floors import floor
from holdfast.backends.nats.store import Store
from holdfast.model.errors import Unavailable

_PAGE = 500
_PAUSE, _TURNS = 0.05, 700


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of a key. Its event belongs at `place`, and `seq` is None where it is not there for sure;
    a publish may then replace the key at `revision`. Without a digest it is a foreign client's event, whose
    content nobody compares."""

    revision: int
    place: int
    digest: str
    there: bool = True

    @property
    def seq(self) -> int | None:
        return self.place if self.there else None


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
            return replace(known, there=committed)
        # A server that died or was full in the middle of a batch may have kept the key without its event.
        # Then something else stands in its place, or nothing; one that was trimmed is below the floor.
        query = {"seq": known.place, "next_by_subj": channel, "batch": 1}
        following, _ = await self._store.link.read(query)
        if following and following[0].seq == known.place:
            return replace(known, there=_key_of(channel, following[0]) == message.subject)
        return replace(known, there=known.place <= (await floor(self._store, channel)).seq)

    async def _outcome(self, publish: str, channel: str, message: Stored) -> bool:
        """Another publisher may be in the middle of it: then its end is waited for."""
        for _ in range(_TURNS):
            fate = await self._fates.one(channel, publish, message.stamp)
            if fate is not None:
                return fate
            await asyncio.sleep(_PAUSE)
        raise Unavailable("the same events are being published by somebody else; try again")


def _key_of(channel: str, event: Stored) -> str:
    return subjects.key(channel, codec.source(event), codec.event_id(event))
