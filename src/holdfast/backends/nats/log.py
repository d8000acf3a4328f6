"""The log: publish and read."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from holdfast import failpoints
from holdfast.backends.nats.codec import Delivery
from holdfast.backends.nats.entries import Entries
from holdfast.backends.nats.publishing import Publishing
from holdfast.backends.nats.store import Store
from holdfast.backends.nats.times import to_micros
from holdfast.model.errors import InvalidInput
from holdfast.model.event import Event, LogEntry, Receipt


class Log:
    """Appends to channels and reads them back."""

    def __init__(self, store: Store, entries: Entries, publishing: Publishing) -> None:
        self._store, self._entries, self._publishing = store, entries, publishing

    async def publish(
        self, channel: str, events: Sequence[Event], at: datetime | None, priority: int, connection: Any
    ) -> list[Receipt]:
        """Append a batch, all or none."""
        if connection is not None:
            raise InvalidInput("NATS has no transaction that a publish could join; leave out the connection")
        if not events:
            return []
        failpoints.hit("publish.before_commit")
        delivery = Delivery(None if at is None else to_micros(at), priority)
        drafts = await self._publishing.append(channel, events, delivery)
        failpoints.hit("publish.after_commit")
        position = self._store.registry.position
        return [Receipt(draft.event.id, position(draft.seq or 0), draft.duplicate) for draft in drafts]

    async def read(self, channel: str, after: str | None, limit: int) -> list[LogEntry]:
        """A page of the log after a position."""
        await self._store.look()
        start = self._store.place(after)
        if start is None:
            return []
        found, _ = await self._entries.page(channel, start, limit)
        events, position = await self._entries.intact(channel, found), self._store.registry.position
        return [
            LogEntry(channel, position(message.seq), event)
            for message, event in zip(found, events, strict=True)
        ]
