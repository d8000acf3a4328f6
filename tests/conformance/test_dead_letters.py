"""Dead letters: what gave up is kept with its story, counted exactly, and can rise again."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

import holdfast
from holdfast.bus.client import Bus
from holdfast.contracts import Backend
from holdfast.model.decide import describe
from holdfast.model.event import Event
from holdfast.model.states import State
from kit import (
    CHANNEL,
    CONSUMER,
    LEASE,
    abandon,
    bury,
    claim,
    claim_one,
    complete,
    ids,
    publish,
    read_all,
    record,
    states,
    step,
    subscribe,
)

DEAD = "orders.dead"


async def test_a_dead_letter_tells_its_story(backend: Backend, bus: Bus) -> None:
    # CORRECTIONS 001.6: the errors are kept, every attempt's.
    await subscribe(backend, max_attempts=3, max_abandonments=2, backoff=["0s"])
    await publish(backend, "a")
    await bus.finalize(await claim_one(backend), success=False, error=ValueError("first"))
    await claim_one(backend)
    await abandon(backend)
    await bus.finalize(await claim_one(backend), success=False, error=KeyError("second"))
    job = await claim_one(backend)
    await bus.finalize(job, success=False, error=RuntimeError("order 17 not found"))
    kept = await record(backend, "a")
    assert (kept.state, kept.reason) == (State.DEAD, "max_attempts")
    assert (kept.attempts, kept.abandonments, kept.token) == (3, 1, job.token)
    assert [error["kind"] for error in kept.errors] == ["ValueError", "", "KeyError", "RuntimeError"]
    assert [error["attempt"] for error in kept.errors] == [1, 2, 2, 3]
    assert kept.errors[-1]["error"] == "order 17 not found"
    assert kept.errors[-1]["fingerprint"] == describe(RuntimeError("order 4711 not found")).fingerprint
    assert kept.ended_at is not None


async def test_without_a_dead_letter_channel_the_job_is_kept_as_well(backend: Backend) -> None:
    await subscribe(backend)
    await publish(backend, "a")
    assert await bury(backend, await claim_one(backend))
    assert await states(backend) == {State.DEAD: 1}
    assert [entry.event.id for entry in await read_all(backend)] == ["a"], "and so is its event"


async def test_the_dead_letter_channel_gets_the_event_with_its_story_in_headers(backend: Backend) -> None:
    # CORRECTIONS 002.7: the dead letter and its copy appear together, and once.
    await backend.channels.create(DEAD)
    await subscribe(backend, "undertaker", channel=DEAD)
    await subscribe(backend, dead_letter=DEAD)
    event = Event(b"\x00raw", "a", source="shop", type="order", key="k", headers={"trace": "x"})
    await backend.log.publish(CHANNEL, [event])
    job = await claim_one(backend)
    assert await bury(backend, job)
    assert not await bury(backend, job), "a repeat changes nothing"
    assert (await record(backend, "a", source="shop")).state is State.DEAD
    copy = (await claim_one(backend, channel=DEAD, consumer="undertaker")).event
    assert (copy.data, copy.type, copy.key) == (event.data, event.type, event.key)
    expected = {"channel": CHANNEL, "consumer": CONSUMER, "source": "shop", "id": "a", "reason": "terminal"}
    assert dict(copy.headers) == {
        "trace": "x",
        "holdfast-error": "boom",
        **{f"holdfast-{name}": value for name, value in expected.items()},
    }
    assert await claim(backend, channel=DEAD, consumer="undertaker") == []


async def test_what_the_lifecycle_buries_goes_there_too(backend: Backend) -> None:
    await backend.channels.create(DEAD)
    await subscribe(backend, dead_letter=DEAD, max_abandonments=1, expires_after="1h")
    await publish(backend, "crashes")
    await claim_one(backend)
    await publish(backend, "waits")
    await backend.advance(12 * LEASE)
    assert (await step(backend)).buried == 2
    headers = [entry.event.headers for entry in await read_all(backend, DEAD)]
    assert {(h["holdfast-id"], h["holdfast-reason"]) for h in headers} == {
        ("crashes", "crash_loop"),
        ("waits", "expired"),
    }


@pytest.mark.parametrize("reason", ["terminal", "max_attempts", "crash_loop", "expired"])
async def test_a_discard_is_logged_and_announced_once(
    bus: Bus, backend: Backend, caplog: pytest.LogCaptureFixture, reason: str
) -> None:
    await subscribe(backend, on_dead="discard", max_attempts=1, max_abandonments=1, expires_after="1h")
    await publish(backend, "a")
    if reason != "expired":
        [job] = await bus.poll(CHANNEL, CONSUMER)
    if reason in ("terminal", "max_attempts"):
        await bus.finalize(job, success=False, error="no route", terminal=reason == "terminal")
    else:
        await backend.advance(timedelta(hours=1))
        await bus.poll(CHANNEL, CONSUMER)
    await step(backend)
    [line] = [each.getMessage() for each in caplog.records if "is discarded" in each.getMessage()]
    assert line.startswith(f"{CHANNEL}/{CONSUMER}: event a of default (job ")
    assert f"is discarded: {reason} after " in line
    [told] = [entry.event.json() for entry in await read_all(backend, "gbe.events.system.discard")]
    assert (told["channel"], told["consumer"], told["event_id"]) == (CHANNEL, CONSUMER, "a")
    assert (told["reason"], told["attempts"], told["abandonments"]) == (
        reason,
        int(reason in ("terminal", "max_attempts")),
        int(reason == "crash_loop"),
    )
    assert told["error"] in line


async def test_a_discarded_system_event_is_only_logged(bus: Bus, backend: Backend) -> None:
    """An event about it would be discarded next, without end."""
    channel = "gbe.events.system.discard"
    await subscribe(backend, channel=channel, on_dead="discard")
    await publish(backend, "a", channel=channel)
    [job] = await bus.poll(channel, CONSUMER)
    await bus.finalize(job, success=False, terminal=True)
    assert len(await read_all(backend, channel)) == 1


async def test_discard_logs_what_it_drops(backend: Backend) -> None:
    await subscribe(backend, on_dead="discard", expires_after="1h")
    await publish(backend, "a", "b")
    assert await bury(backend, await claim_one(backend))
    await backend.advance(12 * LEASE)
    assert (await step(backend)).buried == 1
    kept = [await record(backend, name) for name in ("a", "b")]
    assert [(each.state, each.reason) for each in kept] == [
        (State.DISCARDED, "terminal"),
        (State.DISCARDED, "expired"),
    ]
    assert kept[0].errors[0]["error"] == "boom"
    assert await states(backend) == {State.DISCARDED: 2}
    assert not await backend.leases.requeue(CHANNEL, CONSUMER, kept[0].id)


async def test_a_requeue_raises_the_token_and_gives_fresh_budgets(backend: Backend, bus: Bus) -> None:
    await subscribe(backend, max_attempts=1, max_abandonments=2)
    await publish(backend, "a", "b")
    await claim_one(backend)
    await abandon(backend)
    await complete(backend, await claim_one(backend))
    dead = await claim_one(backend)
    await bus.finalize(dead, success=False, error="no")
    before = await record(backend, "a")
    assert (before.state, before.attempts, before.abandonments) == (State.DEAD, 1, 1)
    await publish(backend, "c")
    assert await bus.requeue(CHANNEL, CONSUMER, dead.id)
    after = await record(backend, "a")
    assert (after.state, after.attempts, after.abandonments) == (State.READY, 0, 0)
    assert after.token > dead.token
    assert after.errors == before.errors, "its past is not forgotten"
    with pytest.raises(holdfast.LeaseLost):
        await bus.finalize(dead, success=True)
    assert ids(await claim(backend)) == ["c", "a"], "it went to the tail"


async def test_an_expired_job_that_was_requeued_has_its_time_again(backend: Backend) -> None:
    await subscribe(backend, expires_after="5m")
    await publish(backend, "a")
    assert (await abandon(backend)).buried == 1
    assert await backend.leases.requeue(CHANNEL, CONSUMER, (await record(backend, "a")).id)
    assert (await step(backend)).total == 0
    assert ids(await claim(backend)) == ["a"]


async def test_counts_are_exact_at_every_step(backend: Backend) -> None:
    await subscribe(backend, max_abandonments=1)
    await publish(backend, *(f"e-{n}" for n in range(10)))
    for dead in range(1, 6):
        assert await bury(backend, await claim_one(backend))
        assert (await states(backend))[State.DEAD] == dead
    await claim(backend)
    assert (await abandon(backend)).buried == 5
    assert await states(backend) == {State.DEAD: 10}
    names = [f"e-{n}" for n in range(10)]
    for risen, name in enumerate(names[:7], start=1):
        assert await backend.leases.requeue(CHANNEL, CONSUMER, (await record(backend, name)).id)
        assert await states(backend) == {State.DEAD: 10 - risen, State.READY: risen}


@pytest.mark.concurrency
async def test_concurrent_burials_count_each_job_once(backend: Backend) -> None:
    await subscribe(backend)
    await publish(backend, *(f"e-{n}" for n in range(60)))
    jobs = await claim(backend)
    answers = await asyncio.gather(*(bury(backend, job) for job in jobs for _ in range(2)))
    assert answers.count(True) == 60
    assert await states(backend) == {State.DEAD: 60}
