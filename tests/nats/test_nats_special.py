"""Events with a time or a priority: their marks, and that they are taken up once, by whomever."""

from __future__ import annotations

from datetime import timedelta

from nats.aio.client import Client

from holdfast.backends.nats import NatsBackend
from holdfast.backends.nats.wire import subjects
from holdfast.model.states import State
from kit import (
    CHANNEL,
    CONSUMER,
    MINUTE,
    claim,
    claim_one,
    complete,
    fail,
    ids,
    publish,
    state,
    states,
    subscribe,
)


async def test_what_has_left_the_log_is_not_found_there_again(
    backend: NatsBackend, other: NatsBackend
) -> None:
    """Several at once, in any order: a cancelled one must not be cancelled once more."""
    await subscribe(backend)
    await publish(backend, *(f"e-{n}" for n in range(12)), priority=5)
    while await backend.leases.cancel_waiting(CHANNEL, CONSUMER, 3):
        assert await other.leases.cancel_waiting(CHANNEL, CONSUMER, 2) in (0, 2)
    assert await states(backend) == {State.CANCELLED: 12}


async def test_a_special_event_overtakes_a_long_log(backend: NatsBackend) -> None:
    await subscribe(backend)
    await publish(backend, *(f"e-{n}" for n in range(2000)))
    await publish(backend, "urgent", priority=9)
    await publish(backend, "low", priority=-1)
    assert ids(await claim(backend, 3)) == ["urgent", "e-0", "e-1"]


async def test_what_is_passed_over_does_not_come_twice(backend: NatsBackend) -> None:
    await subscribe(backend)
    for turn in range(6):
        await publish(backend, f"plain-{turn}")
        await publish(backend, f"high-{turn}", priority=1)
    assert ids(await claim(backend)) == [
        *(f"high-{turn}" for turn in range(6)),
        *(f"plain-{turn}" for turn in range(6)),
    ]
    assert await claim(backend) == []
    assert await states(backend) == {State.LEASED: 12}


async def test_a_special_event_without_its_mark_is_delivered(backend: NatsBackend, client: Client) -> None:
    """As of a foreign client, or of a server that died in the middle of a batch."""
    await subscribe(backend)
    await publish(backend, "ours", priority=3)
    assert ids(await claim(backend)) == ["ours"]
    headers = {"ce-id": "theirs", subjects.PRIORITY: "7"}
    await client.jetstream().publish(CHANNEL, b"1", headers=headers)
    await publish(backend, "later", priority=1)
    seen = ids(await claim(backend)) + ids(await claim(backend))
    assert sorted(seen) == ["later", "theirs"]
    assert await states(backend) == {State.LEASED: 3}


async def test_special_events_that_wait_are_counted_and_cancelled(backend: NatsBackend) -> None:
    await subscribe(backend)
    await publish(backend, "plain")
    await publish(backend, "later", at=await backend.now() + MINUTE)
    await publish(backend, "high", priority=1)
    assert await states(backend) == {State.READY: 2, State.SCHEDULED: 1}
    assert await backend.leases.cancel(CHANNEL, "default", "later", None) == 1
    assert await states(backend) == {State.READY: 2, State.CANCELLED: 1}
    assert ids(await claim(backend)) == ["high", "plain"]
    await backend.advance(2 * MINUTE)
    assert (await backend.lifecycle.due(10)).due == []


async def test_a_trim_takes_the_marks_along(backend: NatsBackend, client: Client) -> None:
    await subscribe(backend)
    await publish(backend, "a", priority=1)
    await publish(backend, "b", at=await backend.now() + timedelta(days=1))
    assert await complete(backend, await claim_one(backend))
    lock = await backend.locks.acquire("gbe:lock:sweeper", "me", 60 * MINUTE)
    await backend.advance(MINUTE)
    assert (await backend.retention.trim(CHANNEL, await backend.now(), 10, lock)).removed == 1
    info = await client.jetstream().stream_info("HOLDFAST", subjects_filter="HF.X.>")
    assert info.state.subjects == {f"HF.X.{CHANNEL}": 1}


async def test_expired_events_at_the_head_are_buried_and_the_rest_is_claimed(backend: NatsBackend) -> None:
    await subscribe(backend, expires_after="10m")
    await publish(backend, "old-1", "old-2")
    await backend.advance(11 * MINUTE)
    await publish(backend, "young")
    assert ids(await claim(backend)) == ["young"]
    assert len((await backend.lifecycle.due(10)).due) == 2
    assert await state(backend, "old-1") is State.READY


async def test_a_start_in_the_past_does_not_bury_it(backend: NatsBackend) -> None:
    await publish(backend, "old")
    await backend.advance(60 * MINUTE)
    await subscribe(backend, start="earliest", expires_after="10m")
    assert (await backend.lifecycle.due(10)).due == []
    job = await claim_one(backend)
    assert await fail(backend, job, 5 * MINUTE)
    await backend.advance(11 * MINUTE)
    assert len((await backend.lifecycle.due(10)).due) == 1
