"""Burials of old: dead letters that are given up after their time."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from holdfast.backends.nats import records, subjects
from holdfast.backends.nats.batch import Stale
from holdfast.backends.nats.locks import Locks
from holdfast.backends.nats.records import Record
from holdfast.backends.nats.registry import Member
from holdfast.backends.nats.store import TRIES, Store
from holdfast.backends.nats.times import to_micros
from holdfast.model.errors import Unavailable
from holdfast.model.job import State
from holdfast.model.upkeep import Lock

_MOST = 190  # each takes up to five messages of a batch


class Burials:
    """Purges dead letters, each with a record of it."""

    def __init__(self, store: Store, locks: Locks) -> None:
        self._store, self._locks = store, locks

    async def purge(self, channel: str, before: datetime, limit: int, lock: Lock) -> dict[str, int]:
        """dead → purged for what died before a time; how many, by consumer."""
        now = await self._store.fresh()
        await self._locks.fence(lock)
        purged: dict[str, int] = {}
        for member in self._store.registry.by_channel.get(channel, ()):
            left = limit - sum(purged.values())
            count = await self._purge(member, to_micros(before), left, lock, now)
            if count:
                purged[member.name] = count
        return purged

    async def _purge(self, member: Member, before: int, limit: int, lock: Lock, now: int) -> int:
        count, stale = 0, 0
        async with self._store.lock(member.ref):
            while count < limit:
                dead = await self._dead(member, before, min(limit - count, _MOST))
                if not dead:
                    break
                edit = self._store.edit(member.ref)
                for record in dead:
                    edit.purge(record, replace(record, state=State.PURGED, ended=now))
                edit.also([await self._locks.fence(lock)])
                try:
                    await self._store.commit(edit.messages())
                    count += len(dead)
                except Stale:
                    stale += 1
                    if stale > TRIES:
                        raise Unavailable(f"the dead letters of {member.name!r} change too often") from None
                    await self._store.look_again(stale)
        return count

    async def _dead(self, member: Member, before: int, limit: int) -> list[Record]:
        """The oldest ones. They stand in the stream in the order in which they died."""
        found: list[Record] = []
        after, pending = 0, 1
        while pending and len(found) < limit:
            query = {"seq": after + 1, "next_by_subj": subjects.dead(member.ref, "*"), "batch": limit}
            messages, pending = await self._store.link.read(query)
            for message in messages:
                record = records.decode(message.data, message.seq) if message.data else None
                if record is not None and (record.ended or 0) >= before:
                    return found
                found += [record] if record is not None else []
                after = message.seq
        return found[:limit]
