"""State records on NATS: any client reads them as a key-value bucket, and may write to it."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest
from nats.aio.client import Client

import holdfast
from holdfast.backends.nats import NatsBackend
from holdfast.model.upkeep import StateRecord

KEY = "gbe.state.tasks.email.t-1"


async def test_a_plain_client_reads_them_as_a_bucket(backend: NatsBackend, client: Client) -> None:
    first = await backend.records.put(KEY, {"state": "pending"}, 0)
    bucket = await client.jetstream().key_value("gbe_state")
    entry = await bucket.get("tasks.email.t-1")
    assert (json.loads(entry.value or b""), entry.revision) == ({"state": "pending"}, first)
    second = await backend.records.put(KEY, {"state": "done"}, first or 0)
    entry = await bucket.get("tasks.email.t-1")
    assert (json.loads(entry.value or b""), entry.revision) == ({"state": "done"}, second)
    assert await bucket.keys() == ["tasks.email.t-1"]
    status = await bucket.status()
    info = await client.jetstream().stream_info("KV_gbe_state")
    assert (status.history, info.config.storage) == (1, "file")


async def test_a_plain_client_may_write_too(backend: NatsBackend, client: Client) -> None:
    first = await backend.records.put(KEY, {"state": "pending"}, 0, await backend.now())
    bucket = await client.jetstream().key_value("gbe_state")
    changed = await bucket.update("tasks.email.t-1", b'{"state": "mine", "n": 3}', last=first)
    assert await backend.records.get(KEY) == StateRecord(KEY, {"state": "mine", "n": "3"}, changed)
    assert await backend.records.due("gbe.state.", 10) == [], "a write sets the due time anew"
    assert await backend.records.put(KEY, {}, first or 0) is None
    await bucket.put("tasks.text", b"no object")
    with pytest.raises(holdfast.HoldfastError, match=r"tasks\.text"):
        await backend.records.get("gbe.state.tasks.text")


async def test_what_a_plain_client_deleted_can_be_made_again(backend: NatsBackend, client: Client) -> None:
    first = await backend.records.put(KEY, {"n": "1"}, 0, await backend.now())
    bucket = await client.jetstream().key_value("gbe_state")
    await bucket.delete("tasks.email.t-1")
    assert await backend.records.get(KEY) is None
    assert await backend.records.due("gbe.state.", 10) == []
    assert await backend.records.put(KEY, {"n": "2"}, first or 0) is None
    again = await backend.records.put(KEY, {"n": "2"}, 0)
    assert await backend.records.get(KEY) == StateRecord(KEY, {"n": "2"}, again or 0)


async def test_due_records_are_found_by_a_process_that_wrote_none(backend: NatsBackend) -> None:
    now = await backend.now()
    for n in range(20):
        await backend.records.put(f"gbe.state.tasks.{n}", {}, 0, now + timedelta(minutes=n))
    other = backend.fork()
    await other.open()
    try:
        await backend.advance(timedelta(minutes=4))
        found = [record.key for record in await other.records.due("gbe.state.tasks.", 10)]
        assert found == [f"gbe.state.tasks.{n}" for n in range(5)]
        taken = await other.records.get("gbe.state.tasks.0")
        assert taken is not None
        assert await backend.records.put(taken.key, {}, taken.revision) is not None
        found = [record.key for record in await other.records.due("gbe.state.tasks.", 10)]
        assert found == [f"gbe.state.tasks.{n}" for n in range(1, 5)]
        assert await other.records.due("other.state.", 10) == []
    finally:
        await other.close()


async def test_two_keys_of_one_place_are_told_apart(backend: NatsBackend) -> None:
    assert await backend.records.put("my_ns.state.a", {}, 0) is not None
    assert await backend.records.put("my.ns_state.a", {}, 0) is None
    with pytest.raises(holdfast.InvalidInput, match=r"my_ns\.state\.a"):
        await backend.records.get("my.ns_state.a")


@pytest.mark.parametrize("key", ["", "a", "a.b", "a.b.", "a..b.c", "a.b.c d", "a.b.*", "a.b.>", "a.b.ü"])
async def test_what_is_no_key_is_refused_by_name(backend: NatsBackend, key: str) -> None:
    for call in (backend.records.get(key), backend.records.put(key, {}, 0)):
        with pytest.raises(holdfast.InvalidInput) as caught:
            await call
        assert repr(key) in str(caught.value)
    with pytest.raises(holdfast.InvalidInput, match="gbe"):
        await backend.records.due("gbe", 10)
