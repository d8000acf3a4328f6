"""Positive controls: with one guard switched off, the same rig finds the violation.

A zero in the other files is believable only because of these.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from itertools import count
from typing import Any

import pytest

import holdfast
from holdfast.chaos.rig import CHANNEL, CONSUMER, Rig
from holdfast.chaos.stores import STORES
from holdfast.chaos.weakened import Weakened
from holdfast.contracts import Backend
from holdfast.model.event import Event, Receipt
from holdfast.model.job import Job
from holdfast.wiring import backend

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


async def two_holders(rig: Rig, make: Callable[[str], Backend] = backend) -> None:
    """A job whose first holder answers after a second one has it; both say that it is done."""
    async with rig.bus("slow", make) as slow, rig.bus("quick", make) as quick:
        await quick.subscribe(CHANNEL, CONSUMER, lease=LEASE)
        await quick.publish(CHANNEL, {"n": 1}, id="e")
        [stale] = await slow.poll(CHANNEL, CONSUMER)
        await quick.partitions.all[0].backend.advance(LEASE)
        [fresh] = await quick.poll(CHANNEL, CONSUMER)
        for bus, job in ((slow, stale), (quick, fresh)):
            try:
                await bus.finalize(job, success=True)
            except holdfast.LeaseLost:
                continue


async def test_with_the_fence_the_judge_has_nothing_to_say(rig: Rig) -> None:
    await two_holders(rig)
    assert await rig.verdict() == []


@pytest.mark.parametrize(("make", "broken"), [(Unfenced, {"I5"}), (Credulous, {"I4", "I5"})])
async def test_without_the_fence_the_judge_finds_the_stale_completion(
    rig: Rig, make: Callable[[str], Backend], broken: set[str]
) -> None:
    await two_holders(rig, make)
    assert await rig.broken() == broken


class Impatient(Weakened):
    """Takes the leases that run back, whenever somebody asks for work."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.held: list[Job] = []

    async def claim(self, channel: str, consumer: str, limit: int, worker: str) -> list[Job]:
        for job in self.held:
            await self.inner.requeue(channel, consumer, job.id)
        self.held = await self.inner.claim(channel, consumer, limit, worker)
        return self.held


async def test_a_lease_that_is_given_to_another_while_it_runs_is_found(rig: Rig) -> None:
    async with rig.bus("impatient", Impatient) as bus:
        await bus.subscribe(CHANNEL, CONSUMER, lease=LEASE)
        await bus.publish(CHANNEL, {"n": 1}, id="e")
        await bus.poll(CHANNEL, CONSUMER)
        await bus.finalize_many(await bus.poll(CHANNEL, CONSUMER), success=True)
    assert await rig.broken() == {"I6"}


class Hasty(Weakened):
    """Acknowledges before it commits, and then never commits."""

    async def publish(self, channel: str, events: Sequence[Event], **_: Any) -> list[Receipt]:
        [first] = await self.inner.publish(f"{channel}.elsewhere", [Event(b"{}", "somewhere")])
        return [Receipt(event.id, first.position) for event in events]


async def test_an_ack_before_the_commit_is_found_as_a_loss(rig: Rig) -> None:
    async with rig.bus("hasty", Hasty) as bus:
        await bus.subscribe(CHANNEL, CONSUMER)
        await bus.publish(CHANNEL, {"n": 1}, id="lost")
    [violation] = await rig.verdict()
    assert violation.invariant == "I1"
    assert "lost" in violation.message


class Forgetful(Weakened):
    """Publishes every retry as an event of its own."""

    sources = count(1)

    async def publish(self, channel: str, events: Sequence[Event], **options: Any) -> list[Receipt]:
        source = f"turn-{next(self.sources)}"
        return await self.inner.publish(channel, [each._replace(source=source) for each in events], **options)


async def test_a_repeat_without_its_idempotency_key_is_found_as_a_double(rig: Rig) -> None:
    async with rig.bus("forgetful", Forgetful) as bus:
        for _ in range(2):
            await bus.publish(CHANNEL, {"n": 1}, id="twice")
    assert await rig.broken() == {"I2"}


async def honest(rig: Rig) -> None:
    """Two jobs done, one dead, one retried and leased again, one still leased."""
    async with rig.bus("honest") as bus:
        await bus.subscribe(CHANNEL, CONSUMER, backoff=["0s"])
        await bus.publish_many(CHANNEL, [Event({"n": n}, f"e-{n}") for n in range(5)])
        first, second, third, fourth, _ = await bus.poll(CHANNEL, CONSUMER, limit=5)
        await bus.finalize_many([first, second], success=True)
        await bus.finalize(third, success=False, error="no", terminal=True)
        await bus.finalize(fourth, success=False, error="not yet")
        [again] = await bus.poll(CHANNEL, CONSUMER)
        await bus.extend(again, LEASE)


SABOTAGE = [(name, what) for name, kind in STORES.items() for what in kind.sabotage]


@pytest.mark.parametrize(("store", "what"), SABOTAGE, indirect=["store"])
async def test_the_judge_finds_what_was_done_behind_the_back_of_the_bus(rig: Rig, what: str) -> None:
    await honest(rig)
    assert await rig.verdict(drained=False) == []
    await rig.store.vandalise(rig.url, what)
    assert rig.store.sabotage[what][0] in await rig.broken(drained=False)


async def test_leases_that_nobody_ends_are_found_as_a_backlog_that_does_not_drain(rig: Rig) -> None:
    await honest(rig)
    assert await rig.broken() == {"I15"}
