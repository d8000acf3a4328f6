"""Channels and consumers: paused, listed, and not found."""

from __future__ import annotations

import pytest

import holdfast
from holdfast.bus.client import Bus
from holdfast.contracts import Backend
from kit import (
    CHANNEL,
    CONSUMER,
    abandon,
    claim,
    claim_one,
    complete,
    ids,
    publish,
    subscribe,
)


async def test_a_paused_consumer_hands_out_nothing_until_resumed(backend: Backend) -> None:
    await subscribe(backend, lease="5m")
    await publish(backend, "a", "b")
    running = await claim_one(backend)
    await backend.channels.set_paused(CHANNEL, CONSUMER, True)
    assert (await backend.channels.consumer(CHANNEL, CONSUMER)).paused
    assert await claim(backend) == []
    assert await complete(backend, running), "a lease that runs goes on"
    await publish(backend, "c")
    await backend.channels.set_paused(CHANNEL, CONSUMER, False)
    assert ids(await claim(backend)) == ["b", "c"]


async def test_a_pause_of_one_consumer_leaves_the_others_alone(backend: Backend) -> None:
    for consumer in ("billing", "mail"):
        await subscribe(backend, consumer)
    await backend.channels.set_paused(CHANNEL, "billing", True)
    await publish(backend, "a")
    assert ids(await claim(backend, consumer="mail")) == ["a"]


async def test_leases_end_while_paused(backend: Backend) -> None:
    await subscribe(backend)
    await publish(backend, "a")
    await claim_one(backend)
    await backend.channels.set_paused(CHANNEL, CONSUMER, True)
    assert (await abandon(backend)).abandoned == 1
    assert await claim(backend) == []


async def test_what_does_not_exist_is_not_found(backend: Backend, bus: Bus) -> None:
    await backend.channels.create(CHANNEL)
    with pytest.raises(holdfast.NotFound, match="nobody"):
        await bus.poll(CHANNEL, "nobody")
    with pytest.raises(holdfast.NotFound, match="nobody"):
        await backend.channels.set_paused(CHANNEL, "nobody", True)
    with pytest.raises(holdfast.NotFound, match="nobody"):
        await backend.channels.consumer_stats(CHANNEL, "nobody")
    with pytest.raises(holdfast.NotFound, match="nowhere"):
        await backend.channels.stats("nowhere")


async def test_channels_and_their_consumers_are_listed(backend: Backend) -> None:
    await subscribe(backend, "b", channel="two")
    await subscribe(backend, "a", channel="two")
    await publish(backend, "x", channel="one")
    assert await backend.channels.names() == ["one", "two"]
    assert [(c.channel, c.name) for c in await backend.channels.consumers()] == [("two", "a"), ("two", "b")]
    stats = await backend.channels.stats("one")
    assert (stats.name, stats.events, stats.consumers) == ("one", 1, [])
    assert stats.last_published is not None
    assert (await backend.channels.stats("two")).consumers == ["a", "b"]
    assert (await backend.channels.stats("two")).last_published is None
