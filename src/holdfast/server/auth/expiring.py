"""Expiring records: facts about access that hold until a time, in the first store, shared by all servers."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from holdfast.bus.client import Bus
from holdfast.contracts import Backend
from holdfast.model.upkeep import Record

_BATCH = 500
_END = "expires_at"


async def first_store(bus: Bus) -> Backend:
    """Where a deployment keeps who gets in; raises `Unavailable` while it does not answer."""
    return (await bus.partitions.ready(bus.partitions.all[0])).backend


class Expiring:
    """The records under one prefix. Whatever has expired is found no more, removed or not."""

    def __init__(self, bus: Bus, prefix: str) -> None:
        self._bus, self._prefix = bus, prefix

    async def add(self, key: str, fields: Mapping[str, str], expires: datetime) -> bool:
        """Write a record that is not there yet; False where it is. Of several at once, one gets True."""
        store = await first_store(self._bus)
        kept = {**fields, _END: expires.isoformat()}
        return await store.put_record(self._prefix + key, kept, 0, expires) is not None

    async def find(self, key: str) -> Mapping[str, str] | None:
        """The fields of a record, while it holds."""
        found = await self._valid(key)
        return None if found is None else found.fields

    async def take(self, key: str) -> Mapping[str, str] | None:
        """The fields of a record, which is removed; of several at once, one gets them."""
        found = await self._valid(key)
        if found is None:
            return None
        removed = await (await first_store(self._bus)).remove_record(found.key, found.revision)
        return found.fields if removed else None

    async def remove_expired(self) -> int:
        """Remove what has expired; returns how many records that were."""
        store, removed = await first_store(self._bus), 0
        while due := await store.due_records(self._prefix, _BATCH):
            for each in due:
                removed += await store.remove_record(each.key, each.revision)
            if len(due) < _BATCH:
                break
        return removed

    async def _valid(self, key: str) -> Record | None:
        store = await first_store(self._bus)
        found = await store.record(self._prefix + key)
        if found is None or await store.now() >= datetime.fromisoformat(found.fields[_END]):
            return None
        return found
