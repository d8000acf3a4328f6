"""Trimming and the dead: a dead letter keeps its event however old, until it is purged."""

from __future__ import annotations

import pytest
from sweeps import HOUR, Sweep, kept, locked

from holdfast.contracts import Backend
from holdfast.model.event import Event
from holdfast.model.states import State
from holdfast.model.upkeep import Hold, Trim
from kit import (
    CHANNEL,
    CONSUMER,
    LEASE,
    MINUTE,
    bury,
    claim,
    claim_one,
    complete,
    ids,
    publish,
    read_all,
    record,
    state,
    states,
    subscribe,
)


@pytest.fixture
async def trim(backend: Backend) -> Sweep:
    return Sweep(backend, await locked(backend))


async def test_a_dead_letter_keeps_its_event_however_old(backend: Backend, trim: Sweep) -> None:
    await subscribe(backend, lease="1h")
    event = Event(b"\x00raw\xff", "a", source="shop", type="order", key="k", headers={"trace": "ü"})
    await backend.log.publish(CHANNEL, [event])
    before = await claim_one(backend)
    assert await bury(backend, before)
    await publish(backend, "b")
    assert await complete(backend, await claim_one(backend))
    await backend.advance(24 * 30 * HOUR)
    assert (await trim()).hold is None
    assert "b" not in await kept(backend), "nobody needs it"
    [dead] = await backend.leases.find_jobs(CHANNEL, "shop", "a")
    assert (dead.state, dead.event_id, dead.source) == (State.DEAD, "a", "shop")
    assert dead.position == before.position
    assert dead.errors[0]["error"] == "boom"
    assert await backend.leases.requeue(CHANNEL, CONSUMER, dead.id)
    again = await claim_one(backend)
    assert again.event == before.event
    assert again.position == before.position
    assert again.token > dead.token
    assert await complete(backend, again)
    [done] = await backend.leases.find_jobs(CHANNEL, "shop", "a")
    assert done.state is State.DONE


async def test_it_can_die_and_rise_again_after_the_trim(backend: Backend, trim: Sweep) -> None:
    await backend.channels.create("dead")
    await subscribe(backend, dead_letter="dead")
    await publish(backend, "a")
    first = await claim_one(backend)
    assert await bury(backend, first)
    await trim()
    for life in range(2, 4):
        assert await backend.leases.requeue(CHANNEL, CONSUMER, first.id)
        job = await claim_one(backend)
        assert job.event == first.event
        assert await bury(backend, job)
        assert await states(backend) == {State.DEAD: 1}
        copies = [entry.event for entry in await read_all(backend, "dead")]
        assert [(copy.data, copy.headers["holdfast-id"]) for copy in copies] == [
            (first.event.data, "a")
        ] * life


async def test_a_requeued_dead_letter_is_found_when_it_is_stuck(backend: Backend, trim: Sweep) -> None:
    await subscribe(backend)
    await publish(backend, "a")
    job = await claim_one(backend)
    assert await bury(backend, job)
    await trim()
    assert await backend.leases.requeue(CHANNEL, CONSUMER, job.id)
    await claim_one(backend)
    await backend.advance(LEASE)
    [stuck] = await backend.leases.stuck(10)
    assert (stuck.event_id, stuck.source, stuck.position) == ("a", "default", job.position)


async def test_a_requeued_dead_letter_holds_its_event_while_it_stands_in_the_log(
    backend: Backend, trim: Sweep
) -> None:
    await subscribe(backend)
    await publish(backend, "a", "b")
    job = await claim_one(backend)
    assert await bury(backend, job)
    assert await backend.leases.requeue(CHANNEL, CONSUMER, job.id)
    for each in await claim(backend):
        if each.event.id == "b":
            assert await complete(backend, each)
    assert await trim() == Trim(0, more=False, hold=Hold(CONSUMER, None))


async def test_one_consumers_dead_letter_is_not_anothers_excuse(backend: Backend, trim: Sweep) -> None:
    await subscribe(backend, "gives-up")
    await subscribe(backend, "works")
    await publish(backend, "a")
    assert await bury(backend, await claim_one(backend, consumer="gives-up"))
    assert (await trim()).hold == Hold("works", None)
    assert ids(await claim(backend, consumer="works")) == ["a"]


async def test_a_purge_takes_what_died_before_and_counts_by_consumer(backend: Backend, trim: Sweep) -> None:
    await subscribe(backend, "one")
    await subscribe(backend, "two")
    await subscribe(backend, "well")
    await publish(backend, "a", "b", "c")
    for name, burials in (("one", 3), ("two", 1)):
        for job in await claim(backend, burials, consumer=name):
            assert await bury(backend, job)
    border = await backend.now()
    await backend.advance(MINUTE)
    for job in await claim(backend, 1, consumer="two"):
        assert await bury(backend, job)
    assert await backend.retention.purge_dead(CHANNEL, border, 100, trim.lock) == {"one": 3, "two": 1}
    assert await states(backend, consumer="one") == {State.PURGED: 3}
    assert await states(backend, consumer="two") == {State.PURGED: 1, State.DEAD: 1, State.READY: 1}
    assert await backend.retention.purge_dead(CHANNEL, border, 100, trim.lock) == {}
    left = await record(backend, "a", consumer="one")
    assert (left.state, left.reason) == (State.PURGED, "terminal"), "each purge leaves a record"
    assert left.errors[0]["error"] == "boom"
    assert not await backend.leases.requeue(CHANNEL, "one", left.id), "and nothing brings it back"
    assert await state(backend, "b", consumer="two") is State.DEAD


async def test_a_purge_goes_in_steps(backend: Backend, trim: Sweep) -> None:
    await subscribe(backend)
    await publish(backend, *(f"e-{n}" for n in range(10)))
    for job in await claim(backend):
        assert await bury(backend, job)
    await backend.advance(MINUTE)
    counts = []
    while purged := await backend.retention.purge_dead(CHANNEL, await backend.now(), 4, trim.lock):
        counts.append(purged)
    assert counts == [{CONSUMER: 4}, {CONSUMER: 4}, {CONSUMER: 2}]
    assert await states(backend) == {State.PURGED: 10}


async def test_a_purged_event_is_still_a_duplicate(backend: Backend, trim: Sweep) -> None:
    await subscribe(backend)
    await publish(backend, "a")
    assert await bury(backend, await claim_one(backend))
    await backend.advance(MINUTE)
    assert await backend.retention.purge_dead(CHANNEL, await backend.now(), 10, trim.lock) == {CONSUMER: 1}
    await trim()
    [again] = await publish(backend, "a")
    assert again.duplicate
    assert await claim(backend) == []
