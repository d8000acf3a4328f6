"""Defects of leases: stale holders, two holders, no budget, no end (I4, I5, I6, I15)."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

from holdfast.bus.client import Bus
from holdfast.chaos.controls.control import Control, Play
from holdfast.chaos.rig import CHANNEL, CONSUMER, Rig
from holdfast.chaos.weakened import Weakened, maker
from holdfast.contracts import Reading
from holdfast.model.errors import LeaseLost
from holdfast.model.job import Burial, Job, Retry

LEASE = timedelta(minutes=5)


class Unfenced(Weakened):
    """Completes whatever job that is, whoever holds it."""

    async def complete(self, jobs: Sequence[Job]) -> list[bool]:
        return await self.inner.complete([await self._current(job) for job in jobs])

    async def _current(self, job: Job) -> Job:
        found = await self.inner.find_jobs(job.channel, job.event.source, job.event.id)
        return replace(job, token=found[0].token)


class Credulous(Unfenced):
    """And says yes to everybody."""

    async def complete(self, jobs: Sequence[Job]) -> list[bool]:
        await super().complete(jobs)
        return [True] * len(jobs)


def _two_holders(weakened: type[Weakened]) -> Play:
    """The first holder of a job answers after a second one has it; both say that it is done."""

    async def play(rig: Rig, sound: bool) -> set[str]:
        make = maker(sound, weakened)
        async with rig.bus("slow", make) as slow, rig.bus("quick", make) as quick:
            await quick.subscribe(CHANNEL, CONSUMER, lease=LEASE)
            await quick.publish(CHANNEL, {"n": 1}, id="e")
            [stale] = await slow.poll(CHANNEL, CONSUMER)
            await _pass_time(quick)
            [fresh] = await quick.poll(CHANNEL, CONSUMER)
            await _finished(slow, stale)
            await _finished(quick, fresh)
        return await rig.broken()

    return play


class Impatient(Weakened):
    """Takes the leases that run back, whenever somebody asks for work."""

    held: Sequence[Job] = ()

    async def claim(self, channel: str, consumer: str, limit: int, worker: str) -> list[Job]:
        for job in self.held:
            await self.inner.requeue(channel, consumer, job.id)
        jobs = await self.inner.claim(channel, consumer, limit, worker)
        self.held = jobs
        return jobs


class Repetitive(Weakened):
    """Looks for work and leases it in two steps, so that what somebody has is handed out again."""

    held: Sequence[Job] = ()

    async def claim(self, channel: str, consumer: str, limit: int, worker: str) -> list[Job]:
        jobs = await self.inner.claim(channel, consumer, limit, worker) or list(self.held)
        self.held = jobs
        return jobs


def _asked_twice(weakened: type[Weakened]) -> Play:
    """Somebody asks for work while the only job is leased."""

    async def play(rig: Rig, sound: bool) -> set[str]:
        async with rig.bus("worker", maker(sound, weakened)) as bus:
            await bus.subscribe(CHANNEL, CONSUMER, lease=LEASE)
            await bus.publish(CHANNEL, {"n": 1}, id="e")
            first = await bus.poll(CHANNEL, CONSUMER)
            for job in await bus.poll(CHANNEL, CONSUMER) or first:
                await _finished(bus, job)
        return await rig.broken()

    return play


class Lenient(Weakened):
    """Tries again, however often it was tried."""

    async def bury(self, burials: Sequence[Burial]) -> list[bool]:
        return await self.inner.retry([Retry(each.job, timedelta(0), each.failure) for each in burials])


async def _always_failing(rig: Rig, sound: bool) -> set[str]:
    async with rig.bus("worker", maker(sound, Lenient)) as bus:
        await bus.subscribe(CHANNEL, CONSUMER, max_attempts=2, backoff=["0s"])
        await bus.publish(CHANNEL, {"n": 1}, id="e")
        for _ in range(4):
            for job in await bus.poll(CHANNEL, CONSUMER):
                await bus.finalize(job, success=False, error="no")
    return await rig.broken()


class Timeless(Weakened):
    """Nothing is ever due."""

    async def due(self, limit: int) -> Reading:
        return Reading([], [], 0, False)


async def _worker_vanishes(rig: Rig, sound: bool) -> set[str]:
    async with rig.bus("setup", maker(sound, Timeless)) as bus:
        await bus.subscribe(CHANNEL, CONSUMER, lease=LEASE)
        await bus.publish(CHANNEL, {"n": 1}, id="e")
        worker = rig.start("worker", "worker.after_claim=kill", consumer=CONSUMER, options={})
        await worker.killed()
        await _pass_time(bus)
        for job in await bus.poll(CHANNEL, CONSUMER):
            await bus.finalize(job, success=True)
    return await rig.broken()


async def _pass_time(bus: Bus) -> None:
    await bus.partitions.all[0].backend.advance(LEASE)


async def _finished(bus: Bus, job: Job) -> None:
    with contextlib.suppress(LeaseLost):
        await bus.finalize(job, success=True)


CONTROLS = [
    Control("credulous", "A completion is answered with yes, whoever asks.", "I4", _two_holders(Credulous)),
    Control("lenient", "A job is tried again after its last attempt.", "I4", _always_failing),
    Control("unfenced", "A completion does not carry the lease's token.", "I5", _two_holders(Unfenced)),
    Control("impatient", "A lease is given to another before its end.", "I6", _asked_twice(Impatient)),
    Control("two-step-claim", "A claim looks first and leases later.", "I6", _asked_twice(Repetitive)),
    Control("timeless", "Leases of workers that died are not taken back.", "I15", _worker_vanishes),
]
