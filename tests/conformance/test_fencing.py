"""Fencing: a token that is not the newest changes nothing, whatever it asks for."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

import holdfast
from holdfast.bus.client import Bus
from holdfast.contracts import Backend
from holdfast.model.event import DEFAULT_SOURCE
from holdfast.model.job import Burial, Cancellation, Job, Reason, Retry
from holdfast.model.states import State
from kit import (
    BOOM,
    CHANNEL,
    CONSUMER,
    LEASE,
    MINUTE,
    abandon,
    bury,
    by_id,
    claim,
    claim_one,
    complete,
    fail,
    publish,
    record,
    states,
    step,
    subscribe,
)

Verb = Callable[[Bus, Job], Awaitable[None]]
VERBS: dict[str, Verb] = {
    "complete": lambda bus, job: bus.finalize(job, success=True),
    "retry": lambda bus, job: bus.finalize(job, success=False, error="no"),
    "bury": lambda bus, job: bus.finalize(job, success=False, error="never", terminal=True),
    "extend": lambda bus, job: bus.extend(job, "1h"),
    "release": lambda bus, job: bus.release(job),
    "snooze": lambda bus, job: bus.snooze(job, "1h"),
}


@pytest.fixture
async def job(backend: Backend) -> Job:
    """A leased job."""
    await subscribe(backend, backoff=["1m"], max_attempts=3)
    await publish(backend, "a")
    return await claim_one(backend)


async def lose(how: str, backend: Backend, job: Job) -> None:
    """Let `job`'s token go stale."""
    match how:
        case "leased again":
            await abandon(backend)
            await claim_one(backend)
        case "abandoned":
            await abandon(backend)
        case "requeued":
            assert await backend.leases.requeue(CHANNEL, CONSUMER, job.id)
        case "cancelled":
            how = Cancellation(running=True)
            assert await backend.leases.cancel(CHANNEL, DEFAULT_SOURCE, job.event.id, CONSUMER, how) == 1
        case "completed":
            assert await complete(backend, job)
        case "buried":
            assert await bury(backend, job)
        case "retried":
            assert await fail(backend, job, MINUTE)
        case "released":
            assert await backend.leases.retry([Retry(job, None)]) == [True]


WAYS = ["leased again", "abandoned", "requeued", "cancelled", "completed", "buried", "retried", "released"]


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("how", WAYS)
async def test_a_stale_token_is_refused_and_changes_nothing(
    bus: Bus, backend: Backend, job: Job, verb: str, how: str
) -> None:
    # CORRECTIONS 001.2: a slow worker must not finish somebody else's attempt.
    await lose(how, backend, job)
    before = await record(backend, "a")
    with pytest.raises(holdfast.LeaseLost, match=job.id) as caught:
        await VERBS[verb](bus, job)
    assert caught.value.jobs == (job.id,)
    assert await record(backend, "a") == before


async def test_a_late_answer_is_accepted_while_nobody_has_a_newer_token(
    bus: Bus, backend: Backend, job: Job
) -> None:
    # CORRECTIONS 002.5: after the deadline, the job is still leased and its token is still the newest.
    await backend.advance(LEASE + MINUTE)
    await bus.finalize(job, success=True)
    assert await states(backend) == {State.DONE: 1}
    assert (await step(backend)).total == 0


async def test_a_late_answer_is_refused_once_the_job_was_leased_again(
    bus: Bus, backend: Backend, job: Job
) -> None:
    # CORRECTIONS 002.5
    await abandon(backend)
    newer = await claim_one(backend)
    with pytest.raises(holdfast.LeaseLost):
        await bus.finalize(job, success=True)
    await bus.finalize(newer, success=True)
    assert (await record(backend, "a")).token == newer.token


async def test_a_batch_answers_job_by_job_in_its_order(backend: Backend) -> None:
    await subscribe(backend)
    await subscribe(backend, "mail")
    await publish(backend, "a", "b", "c")
    jobs, mail = by_id(await claim(backend)), await claim(backend, consumer="mail")
    assert await complete(backend, jobs["b"])
    assert await backend.leases.complete([jobs["c"], jobs["b"], *mail, jobs["a"]]) == [
        True,
        False,
        *[True] * 3,
        True,
    ]
    assert await states(backend) == await states(backend, consumer="mail") == {State.DONE: 3}
    assert await backend.leases.complete([]) == []


async def test_finalize_many_applies_the_rest_and_names_the_lost(bus: Bus, backend: Backend) -> None:
    await subscribe(backend)
    await publish(backend, "a", "b")
    jobs = by_id(await claim(backend))
    assert await bury(backend, jobs["a"])
    with pytest.raises(holdfast.LeaseLost) as caught:
        await bus.finalize_many([jobs["a"], jobs["b"]], success=True)
    assert caught.value.jobs == (jobs["a"].id,)
    assert await states(backend) == {State.DEAD: 1, State.DONE: 1}


@pytest.mark.parametrize("verb", ["complete", "retry", "bury", "extend"])
async def test_a_stale_and_a_fresh_lease_of_one_job_are_told_apart_in_one_batch(
    backend: Backend, job: Job, verb: str
) -> None:
    # One worker may hold both: it lost a lease while its handler ran, and claimed the same job again.
    await abandon(backend)
    fresh = await claim_one(backend)
    both = [job, fresh]
    match verb:
        case "complete":
            accepted = await backend.leases.complete(both)
        case "retry":
            accepted = await backend.leases.retry([Retry(each, MINUTE, BOOM) for each in both])
        case "bury":
            accepted = await backend.leases.bury([Burial(each, Reason.TERMINAL, BOOM) for each in both])
        case _:
            accepted = await backend.leases.extend(both, MINUTE)
    assert accepted == [False, True]


async def test_a_token_of_a_consumer_that_was_removed_is_of_no_use_to_one_of_its_name(
    backend: Backend,
) -> None:
    await subscribe(backend)
    await publish(backend, "a", "b")
    old = by_id(await claim(backend))
    while not (await backend.channels.remove_consumer(CHANNEL, CONSUMER, 100)).done:
        pass
    await subscribe(backend, start="earliest")
    new = by_id(await claim(backend))
    assert sorted(new) == ["a", "b"]
    for name in "ab":
        assert not await complete(backend, old[name])
        assert not await fail(backend, old[name])
    assert await states(backend) == {State.LEASED: 2}
    assert await backend.leases.complete(list(new.values())) == [True, True]
