"""Stream messages: the events of the dead-letter channels, `{namespace}._deadletter.*`.

They are copies in a log: they can be listed and published again where they came from, and they leave with
the retention of their channel.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import pairwise
from typing import NamedTuple

from holdfast.bus.byte_limits import entries
from holdfast.contracts import Backend
from holdfast.deadletters.items import Count, Item, ItemId, ItemPage
from holdfast.deadletters.sources import filter_matches
from holdfast.model.deadletters import DeadFilter, fingerprint
from holdfast.model.errors import InvalidInput
from holdfast.model.event import Event
from holdfast.model.names import is_ours, matches

_SLICE, _EFFORT, _MOST = 200, 2_000, 1_000_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_ORIGIN = ("channel", "consumer", "source", "id", "reason", "error")
"""The headers, after `holdfast-`, that say where a message came from and why."""


class Message(NamedTuple):
    """An event of a dead-letter channel, and what stands before it."""

    position: str
    before: str | None
    event: Event


class _Slice(NamedTuple):
    after: str | None
    until: str


async def dead_letter_channels(backend: Backend, namespace: str) -> list[str]:
    """The dead-letter channels of a store."""
    return [each for each in await backend.channels.names() if matches(f"{namespace}._deadletter.*", each)]


@dataclass(frozen=True, slots=True)
class StreamSource:
    """One dead-letter channel on one partition."""

    partition: int
    backend: Backend
    channel: str

    @property
    def name(self) -> str:
        """By its channel and its partition."""
        return f"stream:{self.channel}@{self.partition}"

    async def page(self, where: DeadFilter, after: str | None, limit: int) -> ItemPage:
        """From the end of the log backwards, slice by slice."""
        found: list[Item] = []
        looked_at, last = 0, None
        for part in reversed(await self._slices(where, after)):
            for message in reversed(await self._read(part)):
                if message.position == after:
                    continue
                looked_at, last = looked_at + 1, message.position
                await asyncio.sleep(0)  # a fingerprint may take a millisecond: others have their turn
                if self._holds(where, message):
                    found.append(await self.item(message))
                if len(found) == limit or looked_at == _EFFORT:
                    return ItemPage(found, last)
        return ItemPage(found, None)

    async def count(self, where: DeadFilter, most: int | None) -> Count:
        """Slice by slice, without asking for the time of each message."""
        number, looked_at = 0, 0
        for part in reversed(await self._slices(where, None)):
            if most is not None and looked_at >= most:
                return Count(number, exact=False)
            messages = await self._read(part)
            looked_at += len(messages)
            for message in messages:
                await asyncio.sleep(0)
                number += self._holds(where, message)
        return Count(number, exact=True)

    async def messages(self, positions: Sequence[str]) -> list[Message]:
        """Those of these positions that are still there."""
        wanted = set(positions)
        parts = await self._slices(DeadFilter(), max(wanted)) if wanted else []
        found: list[Message] = []
        for part in parts:
            if any((part.after or "") < each <= part.until for each in wanted):
                found += [each for each in await self._read(part, wanted) if each.position in wanted]
        return found

    async def item(self, message: Message) -> Item:
        """A message in the list. Its time of death is when it was published here."""
        first = await self.backend.log.behind(self.channel, message.before, 1)
        return self._item(message, first.oldest or message.event.time or _EPOCH)

    def _item(self, message: Message, died_at: datetime, *, named: bool = True) -> Item:
        """The item; its fingerprint only if it is `named`: that costs more than all the rest."""
        origin, event = _origin(message.event), message.event
        error = origin.get("error", "")
        return Item(
            id=str(ItemId("stream", message.position, self.channel, partition=self.partition)),
            kind="stream",
            channel=origin.get("channel", self.channel),
            consumer=origin.get("consumer", ""),
            event_id=origin.get("id", event.id),
            source=origin.get("source", event.source),
            reason=origin.get("reason", ""),
            error=error,
            error_kind="",
            fingerprint=fingerprint("", error) if named else "",
            attempts=0,
            died_at=died_at,
            position=message.position,
            partition=self.partition,
        )

    def _holds(self, where: DeadFilter, message: Message) -> bool:
        """Whether a message is meant, whenever it died: the slices see to the time."""
        item = self._item(message, _EPOCH, named=where.fingerprint is not None)
        channel = None if where.channel == self.channel else where.channel
        return filter_matches(replace(where, channel=channel, since=None, until=None), item)

    async def _slices(self, where: DeadFilter, until: str | None) -> list[_Slice]:
        """The log up to a position, within the filter's times, cut into slices that can be read at once."""
        ends = [None if where.since is None else await self.backend.log.seek(self.channel, where.since)]
        if until is None and where.until is not None:
            until = await self.backend.log.seek(self.channel, where.until)
            if until is None:
                return []
        while cuts := await self.backend.log.cuts(self.channel, ends[-1], _MOST, _SLICE, until):
            ends += [cut.position for cut in cuts]
        return [_Slice(first, last) for first, last in pairwise(ends) if last is not None]

    async def _read(self, part: _Slice, wanted: Collection[str] = ()) -> list[Message]:
        """The messages of a slice; the data only of those that are wanted: all of it could fill memory."""
        found: list[Message] = []
        before = part.after
        async for entry in entries(self.backend, self.channel, before):
            if entry.position > part.until:
                break
            event = entry.event if entry.position in wanted else entry.event._replace(data=b"")
            found.append(Message(entry.position, before, event))
            before = entry.position
        return found


def _origin(event: Event) -> dict[str, str]:
    headers = event.headers
    return {name: headers[f"holdfast-{name}"] for name in _ORIGIN if f"holdfast-{name}" in headers}


def republished(channel: str, message: Message) -> tuple[str, Event]:
    """Return the channel that a message came from, and the event to publish there. Its id follows from the
    message's, so that a repeat is a duplicate; it is a plain token, as a task's must be."""
    event, origin = message.event, _origin(message.event)
    if "channel" not in origin:
        raise InvalidInput(
            f"the message {message.position} of {channel} does not say where it came from; "
            "publish it yourself to where it belongs"
        )
    if is_ours(origin["channel"]):
        raise InvalidInput(
            f"the message {message.position} of {channel} came from {origin['channel']}, which is written by "
            "Holdfast itself; nothing is published there again"
        )
    added = {f"holdfast-{name}" for name in _ORIGIN}
    kept = {name: value for name, value in event.headers.items() if name not in added}
    identity = "\0".join((channel, event.source, event.id))
    name = f"requeued-{hashlib.sha256(identity.encode()).hexdigest()[:24]}"
    headers = kept | {"holdfast-requeued": f"{channel} {event.id}"}
    source = origin.get("source", event.source)
    return origin["channel"], Event(event.data, name, source, event.type, event.key, event.time, headers)
