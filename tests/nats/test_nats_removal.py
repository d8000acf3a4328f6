"""The end of a consumer on NATS: nothing of it is left, in the stream or in anybody's memory."""

from __future__ import annotations

from typing import Any

import pytest
from nats.aio.client import Client

import holdfast
from holdfast import failpoints
from holdfast.backends.nats import NatsBackend
from holdfast.backends.nats.state.jobs import Jobs
from holdfast.backends.nats.wire.batches import Stale
from holdfast.failpoints import FailpointError
from holdfast.model.event import MAX_DATA, Event
from kit import CHANNEL, CONSUMER, MINUTE, bury, claim, complete, ids, publish, step, subscribe


async def populate(backend: NatsBackend) -> None:
    """Something of everything that a consumer can have."""
    await subscribe(backend, ordered=True)
    await publish(backend, "a", "b", "c", "d", key="k")
    await backend.log.publish(CHANNEL, [Event(b"x" * MAX_DATA, "large"), Event(1, "done"), Event(2, "waits")])
    dead, large, done, leased = await claim(backend)
    for job in (dead, large):
        assert await bury(backend, job)
    assert await complete(backend, done)
    assert leased.event.id == "waits"
    [risen] = await claim(backend)
    assert await bury(backend, risen)
    assert await backend.deadletters.revive(CHANNEL, CONSUMER, [risen.id, large.id], b"patched") == [
        True,
        True,
    ]
    [again] = await claim(backend, 1)
    assert await bury(backend, again)


async def traces(client: Client, ref: str = "1") -> list[str]:
    """Subjects of the stream that are a consumer's."""
    info = await client.jetstream().stream_info("HOLDFAST", subjects_filter="HF.>")
    found = (subject.split(".") for subject in info.state.subjects or {})
    places = {"S": 3, "B": 3}
    return [".".join(each) for each in found if each[places.get(each[1], 2) :][:1] == [ref]]


async def finished(backend: NatsBackend) -> None:
    while not (await backend.channels.remove_consumer(CHANNEL, CONSUMER, 2)).done:
        pass


async def test_nothing_is_left_of_it(backend: NatsBackend, client: Client) -> None:
    await populate(backend)
    assert {each.split(".")[1] for each in await traces(client)} == set("BDEHIQRS")
    await finished(backend)
    assert await traces(client) == []
    await subscribe(backend)
    await publish(backend, "new")
    assert ids(await claim(backend)) == ["new"]
    assert await traces(client) == [], "its number is not given again"
    assert await traces(client, "2") != []


@pytest.mark.parametrize("place", ["remove.after_mark", "remove.after_step", "remove.before_end"])
async def test_a_removal_that_died_is_finished_by_the_next(
    backend: NatsBackend, client: Client, place: str
) -> None:
    await populate(backend)
    with failpoints.active(place, "raise"), pytest.raises(FailpointError):
        await finished(backend)
    other = backend.fork()
    await other.open()
    assert await other.channels.consumers() == []
    assert (await other.lifecycle.due(10)).due == []
    with pytest.raises(holdfast.HoldfastError, match="wait"):
        await subscribe(other)
    await finished(other)
    assert await traces(client) == []
    await other.close()


async def test_another_process_forgets_it_too(backend: NatsBackend, client: Client) -> None:
    other = backend.fork()
    await other.open()
    await subscribe(backend)
    await subscribe(backend, "mail")
    await publish(backend, *(f"e-{n}" for n in range(50)))
    mine = await claim(other, 20)
    later = await claim(other, 20, consumer="mail")
    assert await bury(other, mine[0])
    removed = await backend.channels.remove_consumer(CHANNEL, CONSUMER, 1)
    assert (removed.jobs, removed.done) == (49, False), "what waits and what is leased, at once"
    assert await other.leases.complete([*mine, *later]) == [False] * 20 + [True] * 20
    with pytest.raises(holdfast.NotFound):
        await claim(other)
    await finished(backend)
    assert (await step(other)).total == 0
    assert other._store.mirror.frontiers.keys() == {"2"}
    await other.close()
    assert await traces(client) == [], "nor does it leave counts of it behind"


async def test_a_step_that_began_before_is_refused(backend: NatsBackend, client: Client) -> None:
    """A process that has not heard of the removal proposes its change all the same."""
    other = backend.fork()
    await other.open()
    await subscribe(backend)
    await publish(backend, *"abc")
    dead, *rest = await claim(other, 2)
    assert await bury(other, dead)
    await publish(backend, "d")
    frontier = other._store.mirror.frontier("1")
    await finished(backend)
    with pytest.raises(Stale):
        await other._store.commit([frontier.message("1")])
    assert not await bury(other, rest[0])
    assert not await complete(other, rest[0])
    await other.close()
    assert await traces(client) == []


@pytest.mark.parametrize("verb", ["due", "stuck"])
async def test_a_consumer_that_goes_while_overdue_jobs_are_looked_for(
    backend: NatsBackend, other: NatsBackend, verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for consumer in (CONSUMER, "mail"):
        await subscribe(backend, consumer)
    await publish(backend, "a")
    for consumer in (CONSUMER, "mail"):
        assert len(await claim(backend, consumer=consumer)) == 1
    await backend.advance(60 * MINUTE)
    live, acts = Jobs.live, [1]

    async def slowly(self: Jobs, *given: Any) -> Any:
        found = await live(self, *given)
        if acts:
            acts.pop()
            assert (await other.channels.remove_consumer(CHANNEL, "mail", 100)).done
            await backend._store.mirror.sync_registry()
        return found

    monkeypatch.setattr(Jobs, "live", slowly)
    if verb == "due":
        assert len((await backend.lifecycle.due(10)).due) == 1
    else:
        assert [job.consumer for job in await backend.leases.stuck(10)] == [CONSUMER]
    assert acts == []
