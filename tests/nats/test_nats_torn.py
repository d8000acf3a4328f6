"""What a server left of a batch that it did not finish: a key without its event. Nothing is lost by it."""

from __future__ import annotations

import orjson
import pytest
from nats.aio.client import Client

from holdfast.backends.nats import NatsBackend
from holdfast.backends.nats.wire import codec, subjects
from holdfast.model.event import DEFAULT_SOURCE, Event
from kit import CHANNEL, MINUTE, claim, claim_one, complete, ids, publish, read_all, subscribe

TORN = Event({"id": "torn"}, "torn")


async def tear(client: Client, step: int = 1) -> None:
    """A key whose event should stand `step` messages behind it."""
    key = subjects.key(CHANNEL, DEFAULT_SOURCE, TORN.id)
    body = orjson.dumps([codec.content_hash(TORN), step, None])
    await client.jetstream().publish(key, body, headers={subjects.ROLLUP: "sub"})


async def appended(backend: NatsBackend) -> list[str]:
    """What is in the log after the torn event was published again, which is no repeat."""
    [receipt] = await backend.log.publish(CHANNEL, [TORN])
    assert not receipt.duplicate
    [again] = await backend.log.publish(CHANNEL, [TORN])
    assert (again.position, again.duplicate) == (receipt.position, True)
    return [entry.event.id for entry in await read_all(backend)]


async def test_where_nothing_follows(backend: NatsBackend, client: Client) -> None:
    await backend.channels.create(CHANNEL)
    await tear(client)
    assert await appended(backend) == ["torn"]


async def test_where_what_followed_was_replaced_since(backend: NatsBackend, client: Client) -> None:
    """Most messages of ours replace one another: an empty place does not tell that an event was trimmed."""
    await backend.channels.create(CHANNEL)
    await tear(client)
    for display in ("Orders", "All orders"):
        await backend.channels.set_display(CHANNEL, None, display)
    assert await appended(backend) == ["torn"]


@pytest.mark.parametrize("step", [1, 2])
async def test_where_another_event_followed(backend: NatsBackend, client: Client, step: int) -> None:
    await backend.channels.create(CHANNEL)
    await tear(client, step)
    if step == 1:
        await client.jetstream().publish(CHANNEL, b"{}", headers={"ce-id": "other"})
    else:
        await publish(backend, "other")
    assert await appended(backend) == ["other", "torn"]


async def test_an_event_that_was_trimmed_is_known_all_the_same(backend: NatsBackend) -> None:
    await subscribe(backend)
    await publish(backend, "torn")
    assert await complete(backend, await claim_one(backend))
    await backend.advance(MINUTE)
    lock = await backend.locks.acquire("gbe:lock:sweeper", "me", MINUTE)
    assert lock is not None
    assert (await backend.retention.trim(CHANNEL, await backend.now(), 10, lock)).removed == 1
    [again] = await publish(backend, "torn")
    assert again.duplicate
    assert ids(await claim(backend)) == []
