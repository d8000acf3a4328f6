"""Positive controls: with one guard switched off, the same rig finds the violation.

A zero in the other files is believable only because of these.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from rig import CHANNEL, CONSUMER, Rig

import holdfast
from holdfast.backends.postgres import PostgresBackend
from holdfast.contracts import Backend
from holdfast.model.event import Event, Receipt
from holdfast.model.job import Job
from holdfast.wiring import backend

LEASE = timedelta(minutes=5)

# The completion of seed 001: by id alone.
BY_ID_ALONE = """
    WITH ended AS (
        DELETE FROM holdfast.jobs j USING holdfast.consumers c
        WHERE c.id = j.consumer_id AND c.name = %s AND j.seq = %s RETURNING j.*
    )
    INSERT INTO holdfast.job_log (consumer_id, channel_id, epoch, tx, seq, token, created_at, ended_at,
                                  outcome, priority, attempts, abandonments)
    SELECT consumer_id, channel_id, epoch, tx, seq, token, created_at, holdfast.now(), 'done', priority,
           attempts, abandonments FROM ended
"""


class Unfenced(PostgresBackend):
    """Completes whatever has that id, whoever holds it."""

    async def complete(self, jobs: Sequence[Job]) -> list[bool]:
        async with await psycopg.AsyncConnection.connect(self.url, autocommit=True) as own:
            return [
                (await own.execute(BY_ID_ALONE, (job.consumer, int(job.id)))).rowcount == 1 for job in jobs
            ]


class Credulous(Unfenced):
    """And says yes to everybody."""

    async def complete(self, jobs: Sequence[Job]) -> list[bool]:
        await super().complete(jobs)
        return [True] * len(jobs)


def invariants(rig: Rig, *, drained: bool = True) -> set[str]:
    return {violation.invariant for violation in rig.verdict(drained=drained)}


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
    assert rig.verdict() == []


@pytest.mark.parametrize(("make", "broken"), [(Unfenced, {"I5"}), (Credulous, {"I4", "I5"})])
async def test_without_the_fence_the_judge_finds_the_stale_completion(
    rig: Rig, make: Callable[[str], Backend], broken: set[str]
) -> None:
    await two_holders(rig, make)
    assert invariants(rig) == broken


class Hasty(PostgresBackend):
    """Acknowledges before it commits, and then never commits."""

    async def publish(self, channel: str, events: Sequence[Event], **_: Any) -> list[Receipt]:
        return [Receipt(event.id, f"0001-{0:016x}-{0:016x}") for event in events]


async def test_an_ack_before_the_commit_is_found_as_a_loss(rig: Rig) -> None:
    async with rig.bus("hasty", Hasty) as bus:
        await bus.subscribe(CHANNEL, CONSUMER)
        await bus.publish(CHANNEL, {"n": 1}, id="lost")
    [violation] = rig.verdict()
    assert violation.invariant == "I1"
    assert "lost" in violation.message


class Forgetful(PostgresBackend):
    """Publishes every retry as an event of its own."""

    async def publish(self, channel: str, events: Sequence[Event], **options: Any) -> list[Receipt]:
        async with await psycopg.AsyncConnection.connect(self.url, autocommit=True) as own:
            await own.execute("DELETE FROM holdfast.keys")
        return await super().publish(channel, events, **options)


async def test_a_repeat_without_its_idempotency_key_is_found_as_a_double(rig: Rig) -> None:
    async with rig.bus("forgetful", Forgetful) as bus:
        for _ in range(2):
            await bus.publish(CHANNEL, {"n": 1}, id="twice")
    assert invariants(rig) == {"I2"}


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


SABOTAGE = {
    "a done job vanishes": ("I3", "DELETE FROM holdfast.job_log WHERE seq = 1"),
    "a done job is live again": (
        "I3",
        """INSERT INTO holdfast.jobs (consumer_id, channel_id, epoch, tx, seq, due_at, created_at, state)
           SELECT consumer_id, channel_id, epoch, tx, seq, ended_at, created_at, 'ready'
           FROM holdfast.job_log""",
    ),
    "a dead letter goes uncounted": ("I3", "DELETE FROM holdfast.dead_deltas"),
    "an event is lost with its job": ("I1", "DELETE FROM holdfast.log WHERE seq = 2"),
    "an event changes": ("I1", "UPDATE holdfast.log SET data = '{}' WHERE seq = 2"),
    "an attempt too many": ("I4", "UPDATE holdfast.job_log SET attempts = 6"),
    "nobody completed it": (
        "I4",
        "WITH j AS (DELETE FROM holdfast.jobs RETURNING *)"
        " INSERT INTO holdfast.job_log SELECT consumer_id, channel_id, epoch, tx, seq, token, created_at,"
        " due_at, 'done', priority, attempts, abandonments FROM j",
    ),
    "a token falls": ("I5", "UPDATE holdfast.jobs SET token = 0"),
    "a running lease is given to another": ("I6", "UPDATE holdfast.jobs SET token = token + 1"),
    "a running lease is taken back": (
        "I6",
        "UPDATE holdfast.jobs SET state = 'ready', lease_until = NULL, abandonments = abandonments + 1",
    ),
}


@pytest.mark.parametrize("what", SABOTAGE)
async def test_the_judge_finds_what_was_done_behind_the_back_of_the_bus(rig: Rig, what: str) -> None:
    broken, statement = SABOTAGE[what]
    await honest(rig)
    assert rig.verdict(drained=False) == []
    with psycopg.connect(rig.url) as connection:
        assert connection.execute(statement).rowcount > 0
    assert broken in invariants(rig, drained=False)


async def test_leases_that_nobody_ends_are_found_as_a_backlog_that_does_not_drain(rig: Rig) -> None:
    await honest(rig)
    assert invariants(rig) == {"I15"}
