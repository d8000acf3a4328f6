"""Foreign clients: plain nats-py appends to the log, and reads it."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest
from nats.aio.client import Client

from holdfast.backends.nats import NatsBackend
from holdfast.model.event import Event
from holdfast.model.job import Job, Retry
from holdfast.model.states import State
from kit import claim, claim_one, complete, record, states, subscribe

AUDIT = "gbe.events.audit.change"


async def test_a_plain_publish_is_delivered(backend: NatsBackend, client: Client) -> None:
    await subscribe(backend, channel=AUDIT)
    ack = await client.jetstream().publish(AUDIT, b'{"who": "me"}', headers={"trace": "x"})
    job = await claim_one(backend, channel=AUDIT)
    assert (job.event.json(), dict(job.event.headers), job.event.id) == (
        {"who": "me"},
        {"trace": "x"},
        str(ack.seq),
    )
    assert await complete(backend, job)
    assert (await record(backend, str(ack.seq), channel=AUDIT)).state is State.DONE


async def test_cloudevents_attributes_of_a_foreign_event_count(backend: NatsBackend, client: Client) -> None:
    await subscribe(backend, channel=AUDIT, ordered=True)
    headers = {"ce-id": "o-1", "ce-source": "shop", "ce-type": "order", "ce-partitionkey": "k"}
    await client.jetstream().publish(AUDIT, b"1", headers=headers)
    await client.jetstream().publish(AUDIT, b"2", headers=headers | {"ce-id": "o-2"})
    [job] = await claim(backend, channel=AUDIT)
    assert (job.event.id, job.event.source, job.event.type, job.event.key) == ("o-1", "shop", "order", "k")
    [again] = await backend.log.publish(AUDIT, [Event(b"1", "o-1", "shop")])
    assert (again.duplicate, again.position) == (True, job.position), "its id is taken"
    assert await backend.leases.cancel(AUDIT, "shop", "o-2", None) == 1


async def test_every_consumer_gets_what_is_foreign_and_counts_it(
    backend: NatsBackend, client: Client
) -> None:
    for consumer in ("billing", "mail"):
        await subscribe(backend, consumer)
    for number in range(20):
        await client.jetstream().publish("orders", b"%d" % number)
    assert await states(backend) == await states(backend, consumer="mail") == {State.READY: 20}


async def test_a_foreign_client_reads_what_we_publish(backend: NatsBackend, client: Client) -> None:
    await backend.channels.create(AUDIT)
    seen = await client.subscribe(AUDIT)
    await client.flush()
    await backend.log.publish(AUDIT, [Event({"n": 1}, "größe 1", type="order.placed")])
    message = await seen.next_msg(timeout=60)
    assert message.data == b'{"n":1}'
    assert message.headers is not None
    assert (message.headers["ce-type"], message.headers["ce-id"]) == ("order.placed", "gr%C3%B6%C3%9Fe%201")


async def test_a_foreign_publish_wakes_whoever_listens(backend: NatsBackend, client: Client) -> None:
    await backend.channels.create("orders")
    woken = asyncio.Event()
    listener = await backend.listen(["orders"], lambda _: woken.set())
    try:
        async with asyncio.timeout(60):
            await woken.wait()  # at the start, for what was said before
            woken.clear()
            while not woken.is_set():  # a wake-up may be missed, but not every one
                await client.publish("orders", b"1")
                with suppress(TimeoutError):
                    await asyncio.wait_for(woken.wait(), 0.5)
    finally:
        await listener.close()


async def released(backend: NatsBackend) -> Job:
    """The first job, which has a record of its own now. Who has read its event remembers that."""
    job = await claim_one(backend)
    assert await backend.leases.retry([Retry(job, None)]) == [True]
    return job


async def test_a_job_whose_event_somebody_removed_becomes_a_dead_letter(
    backend: NatsBackend, other: NatsBackend, client: Client
) -> None:
    await subscribe(backend)
    await backend.log.publish("orders", [Event(1, "gone"), Event(1, "kept")])
    gone = await released(other)
    await client.jetstream().delete_msg("HOLDFAST", int(gone.id))
    assert (await claim_one(backend)).event.id == "kept"
    assert await claim(backend) == []
    kept = (await backend.leases.find_jobs("orders", "default", "gone"))[0]
    assert (kept.state, "removed" in kept.errors[0]["error"]) == (State.DEAD, True)


async def test_a_lost_event_that_cannot_be_buried_does_not_cost_the_leases_beside_it(
    backend: NatsBackend, other: NatsBackend, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    await subscribe(backend)
    await backend.log.publish("orders", [Event(1, "gone"), Event(1, "kept")])
    gone = await released(other)
    await client.jetstream().delete_msg("HOLDFAST", int(gone.id))

    async def broken(*_: object) -> None:
        raise ValueError("as if the server had answered nonsense")

    with monkeypatch.context() as patch:
        patch.setattr(backend.leases._transitions, "apply", broken)
        assert [job.event.id for job in await claim(backend)] == ["kept"]
    assert await claim(backend) == []
    assert (await record(backend, "gone")).state is State.DEAD


async def test_a_foreign_event_that_was_cancelled_while_it_waited_is_found_by_its_id(
    backend: NatsBackend, client: Client
) -> None:
    """Also once its consumer has passed it."""
    await subscribe(backend, channel=AUDIT)
    await client.jetstream().publish(AUDIT, b"1", headers={"ce-id": "f-1"})
    assert await backend.leases.cancel(AUDIT, "default", "f-1", None) == 1
    assert await claim(backend, channel=AUDIT) == []
    assert (await record(backend, "f-1", channel=AUDIT)).state is State.CANCELLED
    [again] = await backend.log.publish(AUDIT, [Event(b"1", "f-1")])
    assert again.duplicate
