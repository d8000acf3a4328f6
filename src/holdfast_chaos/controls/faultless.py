"""Defects that show without any fault: leased for nobody, handed out twice, stalled, failed (I18 to I20)."""

from __future__ import annotations

import contextlib
from datetime import timedelta

from holdfast.bus.client import Bus
from holdfast.model.errors import LeaseLost
from holdfast.model.job import Job
from holdfast_chaos.checks.timeline import HEARTBEAT
from holdfast_chaos.controls.control import Control, Play
from holdfast_chaos.controls.leases import Impatient
from holdfast_chaos.faulty_backend import WrappedNoun, maker
from holdfast_chaos.rig import CHANNEL, CONSUMER, Rig
from holdfast_chaos.roles.upkeep import read_clock

_LONG = timedelta(seconds=3)
_ROUNDS = 3


class Dropping(WrappedNoun, noun="leases"):
    """Leases a job, and forgets to hand it out."""

    async def claim(self, channel: str, consumer: str, limit: int, worker: str) -> list[Job]:
        await self.inner.leases.claim(channel, consumer, limit, worker)
        return []


class Reluctant(WrappedNoun, noun="leases"):
    """Finds nothing, as often as it is asked twice."""

    asked = 0

    async def claim(self, channel: str, consumer: str, limit: int, worker: str) -> list[Job]:
        self.asked += 1
        if self.asked <= 2 * _ROUNDS:
            return []
        return await self.inner.leases.claim(channel, consumer, limit, worker)


class Failing(WrappedNoun, noun="leases"):
    """Fails with an error of its own, once."""

    failed = False

    async def claim(self, channel: str, consumer: str, limit: int, worker: str) -> list[Job]:
        if not self.failed:
            self.failed = True
            raise RuntimeError("duplicate key value")
        return await self.inner.leases.claim(channel, consumer, limit, worker)


def _polled(faulty: type[WrappedNoun]) -> Play:
    """Somebody polls with room for more, second after second of the store's time."""

    async def play(rig: Rig, sound: bool) -> set[str]:
        beats = rig.notes(HEARTBEAT)
        async with rig.bus("worker", maker(sound, faulty)) as bus:
            await bus.subscribe(CHANNEL, CONSUMER, lease="1h")
            await bus.publish(CHANNEL, {"n": 1}, id="e")
            for _ in range(_ROUNDS + 1):
                with contextlib.suppress(RuntimeError):
                    await _work(bus)
                store = bus.partitions.all[0].backend
                await read_clock(store, beats)
                await store.advance(_LONG)
                await read_clock(store, beats)
        return await rig.broken(drained=False, faultless=True)

    return play


async def _asked_twice(rig: Rig, sound: bool) -> set[str]:
    """Somebody asks for more work while he has some."""
    async with rig.bus("worker", maker(sound, Impatient)) as bus:
        await bus.subscribe(CHANNEL, CONSUMER, lease="1h")
        await bus.publish(CHANNEL, {"n": 1}, id="e")
        for job in [*await bus.poll(CHANNEL, CONSUMER), *await bus.poll(CHANNEL, CONSUMER)]:
            with contextlib.suppress(LeaseLost):
                await bus.finalize(job, success=True)
    return await rig.broken(faultless=True)


async def _work(bus: Bus) -> None:
    for job in await bus.poll(CHANNEL, CONSUMER, limit=2):
        with contextlib.suppress(LeaseLost):
            await bus.finalize(job, success=True)


CONTROLS = [
    Control("leased-for-nobody", "A claim leases a job and does not hand it out.", "I18", _polled(Dropping)),
    Control("handed-out-twice", "A job that is being worked on is handed out again.", "I18", _asked_twice),
    Control("reluctant", "A claim finds nothing although a job is ready.", "I19", _polled(Reluctant)),
    Control("careless", "A claim fails with an error that is not documented.", "I20", _polled(Failing)),
]
