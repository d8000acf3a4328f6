"""Defects of leases and locks: stale holders, two holders, no budget, no end (I4, I5, I6, I15)."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from holdfast.bus.client import Bus
from holdfast.contracts import Backend, Reading
from holdfast.model.errors import LeaseLost, LockLost
from holdfast.model.job import Burial, Job, Retry
from holdfast.model.upkeep import Lock, Trim
from holdfast_chaos.controls.control import Control, Play
from holdfast_chaos.faulty_backend import WrappedNoun, maker
from holdfast_chaos.rig import CHANNEL, CONSUMER, Rig

LEASE = timedelta(minutes=5)


class Unfenced(WrappedNoun, noun="leases"):
    """Completes whatever job that is, whoever holds it."""

    async def complete(self, jobs: Sequence[Job]) -> list[bool]:
        return await self.inner.leases.complete([await self._current(job) for job in jobs])

    async def _current(self, job: Job) -> Job:
        found = await self.inner.leases.find_jobs(job.channel, job.event.source, job.event.id)
        return replace(job, token=found[0].token)


class Credulous(Unfenced):
    """And says yes to everybody."""

    async def complete(self, jobs: Sequence[Job]) -> list[bool]:
        await super().complete(jobs)
        return [True] * len(jobs)


def _two_holders(faulty: type[WrappedNoun]) -> Play:
    """The first holder of a job answers after a second one has it; both say that it is done."""

    async def play(rig: Rig, sound: bool) -> set[str]:
        make = maker(sound, faulty)
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


async def _cancelled_meanwhile(rig: Rig, sound: bool) -> set[str]:
    """A worker ends a job that somebody has cancelled while it ran."""
    async with rig.bus("worker", maker(sound, Credulous)) as bus:
        await bus.subscribe(CHANNEL, CONSUMER, lease=LEASE)
        await bus.publish(CHANNEL, {"n": 1}, id="e")
        [job] = await bus.poll(CHANNEL, CONSUMER)
        await bus.cancel(CHANNEL, "e", running=True, by="the rig")
        await _finished(bus, job)
    return await rig.broken()


class Impatient(WrappedNoun, noun="leases"):
    """Takes the leases that run back, whenever somebody asks for work."""

    held: Sequence[Job] = ()

    async def claim(self, channel: str, consumer: str, limit: int, worker: str) -> list[Job]:
        for job in self.held:
            await self.inner.leases.requeue(channel, consumer, job.id)
        jobs = await self.inner.leases.claim(channel, consumer, limit, worker)
        self.held = jobs
        return jobs


class Repetitive(WrappedNoun, noun="leases"):
    """Looks for work and leases it in two steps, so that what somebody has is handed out again."""

    held: Sequence[Job] = ()

    async def claim(self, channel: str, consumer: str, limit: int, worker: str) -> list[Job]:
        jobs = await self.inner.leases.claim(channel, consumer, limit, worker) or list(self.held)
        self.held = jobs
        return jobs


def _asked_twice(faulty: type[WrappedNoun]) -> Play:
    """Somebody asks for work while the only job is leased."""

    async def play(rig: Rig, sound: bool) -> set[str]:
        async with rig.bus("worker", maker(sound, faulty)) as bus:
            await bus.subscribe(CHANNEL, CONSUMER, lease=LEASE)
            await bus.publish(CHANNEL, {"n": 1}, id="e")
            first = await bus.poll(CHANNEL, CONSUMER)
            for job in await bus.poll(CHANNEL, CONSUMER) or first:
                await _finished(bus, job)
        return await rig.broken()

    return play


class Lenient(WrappedNoun, noun="leases"):
    """Tries again, however often it was tried."""

    async def bury(self, burials: Sequence[Burial]) -> list[bool]:
        return await self.inner.leases.retry(
            [Retry(each.job, timedelta(0), each.failure) for each in burials]
        )


async def _always_failing(rig: Rig, sound: bool) -> set[str]:
    async with rig.bus("worker", maker(sound, Lenient)) as bus:
        await bus.subscribe(CHANNEL, CONSUMER, max_attempts=2, backoff=["0s"])
        await bus.publish(CHANNEL, {"n": 1}, id="e")
        for _ in range(4):
            for job in await bus.poll(CHANNEL, CONSUMER):
                await bus.finalize(job, success=False, error="no")
    return await rig.broken()


class Timeless(WrappedNoun, noun="lifecycle"):
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


NAME, TTL = "gbe:lock:sweeper", timedelta(minutes=5)


_taken: dict[str, Lock] = {}
"""By name: the lock that was taken last."""


class NamelessLocks(WrappedNoun, noun="locks"):
    """Knows that a lock is held, but not by whom: everybody acts as its holder."""

    async def acquire(self, name: str, owner: str, ttl: timedelta) -> Lock | None:
        taken = await self.inner.locks.acquire(name, owner, ttl)
        if taken is not None:
            _taken[name] = taken
        return taken

    async def release(self, lock: Lock) -> bool:
        await self.inner.locks.release(_taken[lock.name])
        return False


class NamelessRetention(WrappedNoun, noun="retention"):
    """Trims for whoever asks, under the token of the holder."""

    async def trim(self, channel: str, before: datetime, limit: int, lock: Lock, **options: Any) -> Trim:
        return await self.inner.retention.trim(channel, before, limit, _taken[lock.name], **options)


async def _late(rig: Rig, sound: bool) -> tuple[Backend, Lock, Backend]:
    """Somebody who took the lock and was away past its end, and somebody who has it since."""
    make = maker(sound, NamelessLocks, NamelessRetention)
    slow, quick = (rig.recorded(name, make) for name in ("slow", "quick"))
    await slow.open()
    await quick.open()
    lock = await slow.locks.acquire(NAME, "slow", TTL)
    if lock is None:
        raise RuntimeError("nobody has the lock of an empty store, and yet it was not to be had")
    await slow.advance(TTL)
    await quick.locks.acquire(NAME, "quick", TTL)
    return slow, lock, quick


async def _freed(rig: Rig, sound: bool) -> set[str]:
    """It frees what it no longer has, and a third one asks."""
    slow, lock, quick = await _late(rig, sound)
    await slow.locks.release(lock)
    await slow.locks.acquire(NAME, "third", TTL)
    await slow.close()
    await quick.close()
    return await rig.broken()


async def _trimmed(rig: Rig, sound: bool) -> set[str]:
    """It goes on trimming."""
    slow, lock, quick = await _late(rig, sound)
    await slow.channels.create(CHANNEL)
    with contextlib.suppress(LockLost):
        await slow.retention.trim(CHANNEL, await slow.now(), 10, lock)
    await slow.close()
    await quick.close()
    return await rig.broken()


CONTROLS = [
    Control("credulous", "A completion is answered with yes, whoever asks.", "I4", _two_holders(Credulous)),
    Control("late-completion", "A cancelled job is said to be done.", "I4", _cancelled_meanwhile),
    Control("lenient", "A job is tried again after its last attempt.", "I4", _always_failing),
    Control("unfenced", "A completion does not carry the lease's token.", "I5", _two_holders(Unfenced)),
    Control("impatient", "A lease is given to another before its end.", "I6", _asked_twice(Impatient)),
    Control("two-step-claim", "A claim looks first and leases later.", "I6", _asked_twice(Repetitive)),
    Control("timeless", "Leases of workers that died are not taken back.", "I15", _worker_vanishes),
    Control("unfenced-sweep", "A sweeper trims without showing its lock's token.", "I5", _trimmed),
    Control("nameless-lock", "A lock is freed without a look at who holds it.", "I6", _freed),
]
