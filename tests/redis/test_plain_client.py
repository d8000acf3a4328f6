"""State records for a client that knows only the server, and for one that writes there too."""

from __future__ import annotations

import pytest
import redis

import holdfast
from holdfast.backends.redis import RedisBackend
from holdfast.model.upkeep import StateRecord

KEY, PLACE = "gbe.state.tasks.email.t-1", "gbe:state:tasks:email:t-1"


async def test_a_plain_hgetall_shows_the_record(backend: RedisBackend, client: redis.Redis) -> None:
    fields = {"state": "running", "updated_at": "2026-02-14T00:00:00Z", "retry_count": "0"}
    revision = await backend.records.put(KEY, fields, 0)
    shown = client.hgetall(PLACE)
    assert shown.pop("holdfast:revision") == str(revision)
    assert shown == fields
    assert await backend.records.get(KEY) == StateRecord(KEY, fields, revision or 0)


async def test_a_record_that_another_client_made_can_be_read_and_replaced(
    backend: RedisBackend, client: redis.Redis
) -> None:
    client.hset(PLACE, mapping={"state": "pending", "owner": "them"})
    assert await backend.records.put(KEY, {"state": "mine"}, 0) is None, "there is one already"
    assert await backend.records.get(KEY) == StateRecord(KEY, {"state": "pending", "owner": "them"}, 1)
    assert await backend.records.put(KEY, {"state": "running"}, 1) == 2
    assert client.hgetall(PLACE) == {"state": "running", "holdfast:revision": "2"}, "it is written whole"


async def test_a_due_record_that_another_client_removed_is_forgotten(
    backend: RedisBackend, client: redis.Redis
) -> None:
    now = await backend.now()
    for name in ("t-1", "t-2", "t-3"):
        await backend.records.put(f"gbe.state.tasks.{name}", {"state": "running"}, 0, due=now)
    client.delete("gbe:state:tasks:t-2")
    assert [each.key[-3:] for each in await backend.records.due("gbe.state.tasks.", 10)] == ["t-1", "t-3"]
    assert client.zcard("{holdfast}:records:gbe.state.tasks") == 2


async def test_what_is_no_record_is_refused_and_left_alone(
    backend: RedisBackend, client: redis.Redis
) -> None:
    client.xadd(PLACE, {"data": "1"})
    for verb in (
        backend.records.put(KEY, {"state": "x"}, 1),
        backend.records.get(KEY),
        backend.records.put(PLACE, {"state": "x"}, 0),
        backend.records.put("gbe.state.x", {"holdfast:revision": "9"}, 0),
    ):
        with pytest.raises(holdfast.InvalidInput):
            await verb
    assert client.xlen(PLACE) == 1
