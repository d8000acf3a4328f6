"""Defects on the way out: trimmed too early, out of order, passed over (I7, I13, I14)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from datetime import datetime, timedelta
from typing import Any

import psycopg

from holdfast.chaos.controls.control import Control
from holdfast.chaos.parties.following import archive
from holdfast.chaos.rig import CHANNEL, CONSUMER, Rig
from holdfast.chaos.weakened import Weakened, maker
from holdfast.model.event import Event, Receipt
from holdfast.model.log import Extent, Page
from holdfast.model.upkeep import Lock, Trim
from holdfast.upkeep.rules import Keep, Rules
from holdfast.upkeep.sweeper import Sweeper

FOLLOWER, AGE = "follower", timedelta(hours=1)


class Unguarded(Weakened):
    """Trims as if there were no stream consumers."""

    async def trim(self, channel: str, before: datetime, limit: int, lock: Lock, **options: Any) -> Trim:
        everybody = [cursor.name for cursor in await self.inner.cursors(channel)]
        return await self.inner.trim(channel, before, limit, lock, **(options | {"ignore": everybody}))


async def _swept(rig: Rig, sound: bool) -> set[str]:
    """A sweep over old events of which a stream consumer has seen the first few."""
    store = rig.recorded("sweeper", maker(sound, Unguarded))
    await store.open()
    await store.publish(CHANNEL, [Event({"n": n}, f"e-{n}") for n in range(6)])
    await archive(store, rig.notes(FOLLOWER), CHANNEL, FOLLOWER, size=2, pages=1)
    await store.advance(2 * AGE)
    await Sweeper(store, Rules(retention={CHANNEL: Keep(max_age=AGE)}), "control").run_once()
    await store.close()
    return await rig.broken()


class Keyless(Weakened):
    """The events' keys do not reach the store."""

    async def publish(self, channel: str, events: Sequence[Event], **options: Any) -> list[Receipt]:
        return await self.inner.publish(channel, [each._replace(key=None) for each in events], **options)


async def _one_key(rig: Rig, sound: bool) -> set[str]:
    """Of what a worker gets at once it finishes the last first."""
    async with rig.bus("worker", maker(sound, Keyless)) as bus:
        await bus.subscribe(CHANNEL, CONSUMER, ordered=True)
        await bus.publish_many(CHANNEL, [Event({"n": n}, f"e-{n}", key="k") for n in range(3)])
        while jobs := await bus.poll(CHANNEL, CONSUMER, limit=10):
            for job in reversed(jobs):
                await bus.finalize(job, success=True)
    return await rig.broken()


class Naive(Weakened):
    """Reads the log by `id > last`."""

    async def extent(self, channel: str) -> Extent:
        found = await self._after(channel, 0)
        return Extent(None, None, found[-1][0] if found else None)

    async def pages(self, channel: str, after: str | None, until: str, size: int) -> AsyncIterator[Page]:
        last = int(after.rpartition("-")[2], 16) if after else 0
        if found := await self._after(channel, last):
            positions, ids = zip(*found, strict=True)
            yield Page([*positions], [*ids], [], [], [], [], [], [])

    async def _after(self, channel: str, last: int) -> list[tuple[str, str]]:
        async with await psycopg.AsyncConnection.connect(self.inner.url) as connection:
            found = await connection.execute(
                "SELECT holdfast.format_position(l.epoch, l.tx, l.seq), l.id FROM holdfast.log l"
                " JOIN holdfast.channels ch ON ch.id = l.channel_id"
                " WHERE ch.name = %s AND l.seq > %s ORDER BY l.seq",
                (channel, last),
            )
            return await found.fetchall()


async def _late_commit(rig: Rig, sound: bool) -> set[str]:
    """An event gets its number, a second one overtakes it, a reader comes by, and the first one commits."""
    store, notes = rig.recorded("reader", maker(sound, Naive)), rig.notes(FOLLOWER)
    await store.open()
    await store.publish(CHANNEL, [Event({}, "first of all")])
    async with await psycopg.AsyncConnection.connect(rig.url) as connection:
        await store.publish(CHANNEL, [Event({}, "late")], connection=connection)
        await store.publish(CHANNEL, [Event({}, "quick")])
        await archive(store, notes, CHANNEL, FOLLOWER, size=10, is_over=lambda: True)
    await archive(store, notes, CHANNEL, FOLLOWER, size=10, is_over=lambda: True)
    await store.close()
    return await rig.broken()


CONTROLS = [
    Control("unguarded-trim", "Retention does not ask what was archived.", "I7", _swept),
    Control("keyless", "An ordered consumer's events lose their keys on the way.", "I13", _one_key),
    Control("id-above-last", "A reader goes by `id > last`.", "I14", _late_commit, stores=("postgres",)),
]
