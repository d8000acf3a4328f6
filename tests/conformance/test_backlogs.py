"""Backlogs: the live jobs of every consumer, counted without counting the dead or the done."""

from __future__ import annotations

from datetime import timedelta

from holdfast.contracts import Backend, Backlog
from holdfast.model.event import Event
from holdfast.model.states import State
from kit import CHANNEL, CONSUMER, bury, claim, complete, publish, subscribe


async def backlog(backend: Backend, consumer: str = CONSUMER) -> Backlog:
    [found] = [each for each in await backend.channels.backlogs(1000) if each.consumer == consumer]
    return found


async def test_live_jobs_are_told_by_state_and_ended_ones_are_not(backend: Backend) -> None:
    await subscribe(backend)
    await publish(backend, "a", "b", "c", "d", "e")
    await publish(backend, "later", at=await backend.now() + timedelta(days=1))
    first, second, _ = await claim(backend, 3)
    assert await complete(backend, first)
    assert await bury(backend, second)
    found = await backlog(backend)
    assert (found.channel, found.consumer) == (CHANNEL, CONSUMER)
    assert found.live == {State.READY: 2, State.LEASED: 1, State.SCHEDULED: 1}


async def test_a_consumer_with_nothing_to_do_is_told_too(backend: Backend) -> None:
    await subscribe(backend)
    await subscribe(backend, "audit")
    assert [each.consumer for each in await backend.channels.backlogs(10)] == ["audit", CONSUMER]
    found = await backlog(backend, "audit")
    assert set(found.live.values()) == {0}
    assert found.oldest_ready is None


async def test_the_oldest_ready_job_is_found_behind_higher_priorities(backend: Backend) -> None:
    await subscribe(backend)
    before = await backend.now()
    await publish(backend, "old", priority=-5)
    after = await backend.now()
    await backend.advance(timedelta(minutes=10))
    for priority in (0, 7, 3):
        await publish(backend, f"p{priority}", priority=priority)
    found = (await backlog(backend)).oldest_ready
    assert found is not None
    assert before <= found <= after


async def test_jobs_that_wait_for_their_turn_count_as_ready(backend: Backend) -> None:
    await subscribe(backend, ordered=True)
    await backend.log.publish(CHANNEL, [Event({}, f"e{n}", key="k") for n in range(4)])
    assert len(await claim(backend, 10)) == 1
    live = (await backlog(backend)).live
    assert (live[State.READY], live[State.LEASED]) == (3, 1)
