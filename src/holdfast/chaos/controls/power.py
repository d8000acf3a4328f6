"""Power cuts under servers that acknowledge before their disk has it (I1)."""

from __future__ import annotations

import asyncio

from holdfast.chaos.controls.control import Control, Play
from holdfast.chaos.disk import Disk
from holdfast.chaos.rig import CHANNEL, CONSUMER, Rig
from holdfast.chaos.stores import STORES

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
]
