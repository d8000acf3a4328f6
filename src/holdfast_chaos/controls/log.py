"""Defects of the log: what was acknowledged is lost, doubled, out of order, passed over or trimmed too early,
and power cuts under servers that acknowledge before their disk has it (I1, I2, I7, I13, I14, I17)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import count
from typing import Any

import psycopg

from holdfast.contracts import Backend
from holdfast.model.errors import IdConflict, Overloaded
from holdfast.model.event import Event, Receipt
from holdfast.model.log import Extent, Page
from holdfast.model.upkeep import Lock, Trim
from holdfast.upkeep.rules import Keep, Rules
from holdfast.upkeep.sweeper import Sweeper
from holdfast_chaos.controls.control import Control, Play
from holdfast_chaos.disk import Disk
from holdfast_chaos.faulty_backend import WrappedNoun, maker
from holdfast_chaos.rig import CHANNEL, CONSUMER, Rig
from holdfast_chaos.roles.consumers import follow
from holdfast_chaos.stores import STORES


class Hasty(WrappedNoun, noun="log"):
    """Acknowledges before it commits, and then never commits."""

    async def publish(self, channel: str, events: Sequence[Event], **_: Any) -> list[Receipt]:
        [first] = await self.inner.log.publish(f"{channel}.elsewhere", [Event(b"{}", "somewhere")])
        return [Receipt(event.id, first.position) for event in events]


async def _one_event(rig: Rig, sound: bool) -> set[str]:
    async with rig.bus("publisher", maker(sound, Hasty)) as bus:
        await bus.subscribe(CHANNEL, CONSUMER)
        await bus.publish(CHANNEL, {"n": 1}, id="e")
    return await rig.broken(drained=False)


class Forgetful(WrappedNoun, noun="log"):
    """Publishes every repeat as an event of its own."""

    sources = count(1)

    async def publish(self, channel: str, events: Sequence[Event], **options: Any) -> list[Receipt]:
        source = f"turn-{next(self.sources)}"
        return await self.inner.log.publish(
            channel, [each._replace(source=source) for each in events], **options
        )


async def _repeated(rig: Rig, sound: bool) -> set[str]:
    async with rig.bus("publisher", maker(sound, Forgetful)) as bus:
        for _ in range(2):
            await bus.publish(CHANNEL, {"n": 1}, id="twice")
    return await rig.broken()


class Gullible(WrappedNoun, noun="log"):
    """Takes whatever has a known id for a repeat, without looking at its content."""

    def __init__(self, inner: Backend) -> None:
        super().__init__(inner)
        self.known: dict[str, Receipt] = {}

    async def publish(self, channel: str, events: Sequence[Event], **options: Any) -> list[Receipt]:
        fresh = [event for event in events if event.id not in self.known]
        receipts = await self.inner.log.publish(channel, fresh, **options) if fresh else []
        self.known.update({receipt.id: receipt for receipt in receipts})
        return [self.known[event.id] for event in events]


async def _changed(rig: Rig, sound: bool) -> set[str]:
    async with rig.bus("publisher", maker(sound, Gullible)) as bus:
        for number in range(2):
            with contextlib.suppress(IdConflict):
                await bus.publish(CHANNEL, {"n": number}, id="same")
    return await rig.broken()


class Boundless(WrappedNoun, noun="log"):
    """Publishes to a consumer that is full."""

    async def publish(self, channel: str, events: Sequence[Event], **options: Any) -> list[Receipt]:
        known = await self.inner.channels.consumers(channel)
        for each in known:
            await self.inner.channels.subscribe(channel, each.name, replace(each.policy, max_depth=None))
        receipts = await self.inner.log.publish(channel, events, **options)
        for each in known:
            await self.inner.channels.subscribe(channel, each.name, each.policy)
        return receipts


async def _nobody_works(rig: Rig, sound: bool) -> set[str]:
    async with rig.bus("publisher", maker(sound, Boundless)) as bus:
        await bus.subscribe(CHANNEL, CONSUMER, max_depth=3)
        for number in range(6):
            with contextlib.suppress(Overloaded):
                await bus.publish(CHANNEL, {"n": number}, id=f"e-{number}")
    return await rig.broken(drained=False)


FOLLOWER, AGE = "follower", timedelta(hours=1)


class Unguarded(WrappedNoun, noun="retention"):
    """Trims as if there were no stream consumers."""

    async def trim(self, channel: str, before: datetime, limit: int, lock: Lock, **options: Any) -> Trim:
        everybody = [cursor.name for cursor in await self.inner.cursors.all(channel)]
        return await self.inner.retention.trim(
            channel, before, limit, lock, **(options | {"ignore": everybody})
        )


async def _swept(rig: Rig, sound: bool) -> set[str]:
    """A sweep over old events of which a stream consumer has seen the first few."""
    store = rig.recorded("sweeper", maker(sound, Unguarded))
    await store.open()
    await store.log.publish(CHANNEL, [Event({"n": n}, f"e-{n}") for n in range(6)])
    await follow(store, rig.notes(FOLLOWER), CHANNEL, FOLLOWER, size=2, pages=1)
    await store.advance(2 * AGE)
    await Sweeper(store, Rules(retention={CHANNEL: Keep(max_age=AGE)}), "control").run_once()
    await store.close()
    return await rig.broken()


class Keyless(WrappedNoun, noun="log"):
    """The events' keys do not reach the store."""

    async def publish(self, channel: str, events: Sequence[Event], **options: Any) -> list[Receipt]:
        return await self.inner.log.publish(channel, [each._replace(key=None) for each in events], **options)


async def _one_key(rig: Rig, sound: bool) -> set[str]:
    """Of what a worker gets at once it finishes the last first."""
    async with rig.bus("worker", maker(sound, Keyless)) as bus:
        await bus.subscribe(CHANNEL, CONSUMER, ordered=True)
        await bus.publish_many(CHANNEL, [Event({"n": n}, f"e-{n}", key="k") for n in range(3)])
        while jobs := await bus.poll(CHANNEL, CONSUMER, limit=10):
            for job in reversed(jobs):
                await bus.finalize(job, success=True)
    return await rig.broken()


class ReadsByNumber(WrappedNoun, noun="log"):
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
                "SELECT holdfast.format_position(l.epoch, l.seq), l.id FROM holdfast.log l"
                " JOIN holdfast.channels ch ON ch.id = l.channel_id"
                " WHERE ch.name = %s AND l.seq > %s ORDER BY l.seq",
                (channel, last),
            )
            return await found.fetchall()


async def _late_commit(rig: Rig, sound: bool) -> set[str]:
    """An event gets its number, a second one overtakes it, a reader comes by, and the first one commits."""
    store, notes = rig.recorded("reader", maker(sound, ReadsByNumber)), rig.notes(FOLLOWER)
    await store.open()
    await store.log.publish(CHANNEL, [Event({}, "first of all")])
    async with await psycopg.AsyncConnection.connect(rig.url) as connection:
        await store.log.publish(CHANNEL, [Event({}, "late")], connection=connection)
        await store.log.publish(CHANNEL, [Event({}, "quick")])
        await follow(store, notes, CHANNEL, FOLLOWER, size=10, is_over=lambda: True)
    await follow(store, notes, CHANNEL, FOLLOWER, size=10, is_over=lambda: True)
    await store.close()
    return await rig.broken()


EVENTS = 5


def _cut(kind: str, cuts: int = 1) -> Play:
    """A server on a disk of its own; the power fails right after something was acknowledged."""

    async def play(rig: Rig, sound: bool) -> set[str]:
        with Disk() as disk:
            store = await asyncio.to_thread(STORES[kind], disk.path / "server", durable=sound)
            on_disk = Rig(store, await store.empty(), rig.folder)
            try:
                for turn in range(cuts):
                    await _acknowledged(on_disk, turn)
                    await asyncio.to_thread(store.server.kill)
                    await asyncio.to_thread(disk.cut)
                    await asyncio.to_thread(store.server.start)
                return await on_disk.broken(drained=False)
            finally:
                await asyncio.to_thread(store.server.stop)
                on_disk.close()

    return play


async def _acknowledged(rig: Rig, turn: int) -> None:
    async with rig.bus(f"publisher-{turn}") as bus:
        await bus.subscribe(CHANNEL, CONSUMER)
        for number in range(EVENTS):
            await bus.publish(CHANNEL, {"n": number}, id=f"e-{turn}-{number}")


CONTROLS = [
    Control(
        "synchronous-commit-off",
        "PostgreSQL runs with `synchronous_commit=off` when the power fails.",
        "I1",
        _cut("postgres"),
        ("postgres",),
        Disk.missing,
    ),
    Control(
        "everysec",
        "Redis runs with `appendfsync everysec` when the power fails.",
        "I1",
        _cut("redis", 2),  # the first may meet the moment after the sync of a second
        ("redis",),
        Disk.missing,
    ),
    Control(
        "default-sync",
        "NATS runs with its default `sync_interval` when the power fails.",
        "I1",
        _cut("nats"),
        ("nats",),
        Disk.missing,
    ),
    Control("hasty-ack", "A publish is acknowledged before it is committed.", "I1", _one_event),
    Control("forgotten-id", "A repeated publish does not carry its idempotency key.", "I2", _repeated),
    Control("other-content", "The same id with other content counts as a repeat.", "I2", _changed),
    Control("boundless", "A full consumer goes on getting jobs.", "I17", _nobody_works),
    Control("unguarded-trim", "Retention does not ask what was archived.", "I7", _swept),
    Control("keyless", "An ordered consumer's events lose their keys on the way.", "I13", _one_key),
    Control("id-above-last", "A reader goes by `id > last`.", "I14", _late_commit, stores=("postgres",)),
]
