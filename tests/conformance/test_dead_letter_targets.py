"""Dead-letter channels: one that cannot be is refused at subscribe, and a full one loses nothing."""

from __future__ import annotations

import asyncio

import pytest

import holdfast
from holdfast.contracts import Backend
from holdfast.model.errors import InvalidPolicy
from holdfast.model.event import Event
from holdfast.model.job import Burial, Reason
from kit import (
    BOOM,
    CHANNEL,
    CONSUMER,
    bury,
    claim,
    claim_one,
    publish,
    read_all,
    subscribe,
)

DEAD = "orders.dead"


async def test_a_full_dead_letter_channel_keeps_no_dead_job_alive(backend: Backend) -> None:
    # CORRECTIONS 002.6: full is no reason to delete, nor to keep what is dead alive.
    await backend.channels.create(DEAD)
    await subscribe(backend, "undertaker", channel=DEAD, max_depth=1)
    await subscribe(backend, dead_letter=DEAD)
    await publish(backend, "a", "b", "c")
    burials = [Burial(job, Reason.TERMINAL, BOOM) for job in await claim(backend)]
    assert await backend.leases.bury(burials) == [True] * 3
    assert len(await claim(backend, channel=DEAD, consumer="undertaker")) == 3


async def test_an_id_that_somebody_took_keeps_no_dead_job_alive(backend: Backend) -> None:
    await backend.channels.create(DEAD)
    await subscribe(backend, dead_letter=DEAD)
    await publish(backend, "a")
    taken = Event(b"mine", "a#1", f"{CHANNEL}/{CONSUMER}")
    await backend.log.publish(DEAD, [taken])
    assert await bury(backend, await claim_one(backend))
    _, copy = await read_all(backend, DEAD)
    assert (copy.event.json(), copy.event.headers["holdfast-id"]) == ({"id": "a"}, "a")


async def test_the_copy_has_the_data_that_the_job_died_with(backend: Backend) -> None:
    await backend.channels.create(DEAD)
    await subscribe(backend, dead_letter=DEAD)
    await publish(backend, "a")
    dead = await claim_one(backend)
    assert await bury(backend, dead)
    assert await backend.deadletters.revive(CHANNEL, CONSUMER, [dead.id], b"patched") == [True]
    assert await bury(backend, await claim_one(backend))
    assert [entry.event.data for entry in await read_all(backend, DEAD)] == [b'{"id":"a"}', b"patched"]


async def test_a_dead_letter_channel_that_is_missing_is_refused(backend: Backend) -> None:
    # CORRECTIONS 002.6
    with pytest.raises(InvalidPolicy, match=DEAD):
        await subscribe(backend, dead_letter=DEAD)
    with pytest.raises(holdfast.NotFound):
        await backend.channels.consumer(CHANNEL, CONSUMER)


async def test_a_channel_is_not_its_own_dead_letter_channel(backend: Backend) -> None:
    # CORRECTIONS 002.6
    await backend.channels.create(CHANNEL)
    with pytest.raises(InvalidPolicy, match=CHANNEL):
        await subscribe(backend, dead_letter=CHANNEL)


async def test_a_cycle_of_dead_letter_channels_is_refused(backend: Backend) -> None:
    # CORRECTIONS 002.6
    for channel in ("a", "b", "c"):
        await backend.channels.create(channel)
    await subscribe(backend, channel="a", dead_letter="b")
    await subscribe(backend, channel="b", dead_letter="c")
    for target in ("a", "b"):
        with pytest.raises(InvalidPolicy, match=target):
            await subscribe(backend, channel="c", dead_letter=target)
    await subscribe(backend, channel="c")
    with pytest.raises(InvalidPolicy):
        await subscribe(backend, channel="c", dead_letter="a", max_attempts=9)
    kept = await backend.channels.consumer("c", CONSUMER)
    assert (kept.policy.dead_letter, kept.policy.max_attempts) == (None, 5), (
        "a refused change changed nothing"
    )


@pytest.mark.concurrency
async def test_two_subscribes_cannot_close_a_cycle_together(backend: Backend) -> None:
    # CORRECTIONS 002.6
    for channel in ("a", "b"):
        await backend.channels.create(channel)
    outcomes = await asyncio.gather(
        subscribe(backend, channel="a", dead_letter="b"),
        subscribe(backend, channel="b", dead_letter="a"),
        return_exceptions=True,
    )
    assert sum(isinstance(outcome, InvalidPolicy) for outcome in outcomes) == 1
