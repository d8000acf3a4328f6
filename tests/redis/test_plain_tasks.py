"""The task layer for a client that knows only Redis: it submits, and sees progress, ends and state."""

from __future__ import annotations

import json

import redis

from holdfast.backends.redis import RedisBackend
from holdfast.bus.client import Bus
from holdfast.tasks import Tasks
from holdfast.upkeep.rules import Rules
from holdfast.upkeep.sweeper import Sweeper
from holdfast.upkeep.taskrecords import TaskRecords


async def test_a_plain_client_drives_a_task_and_sees_its_life(
    backend: RedisBackend, client: redis.Redis
) -> None:
    async with Bus([backend.fork()]) as bus:
        tasks = Tasks(bus)
        await tasks.claim("email")  # the workers are there
        client.xadd("gbe:tasks:email:queue", {"id": "t-1", "data": json.dumps({"to": "a@example.org"})})
        [task] = await tasks.claim("email")
        assert (task.id, task.json()) == ("t-1", {"to": "a@example.org"})
        record = client.hgetall("gbe:state:tasks:email:t-1")
        assert (record["state"], record["retry_count"], record["max_retries"]) == ("running", "0", "3")
        assert record["updated_at"]
        assert record["timeout_at"] == task.job.lease_until.isoformat()
        await tasks.progress(task, {"percent": 50})
        [(_, told)] = client.xrange("gbe:tasks:email:progress")
        assert json.loads(told["data"])["data"] == {"percent": 50}
        await tasks.complete(task, {"sent": True})
        [(_, end)] = client.xrange("gbe:tasks:email:terminal")
        assert json.loads(end["data"])["state"] == "completed"
        assert client.hget("gbe:state:tasks:email:t-1", "state") == "completed"


async def test_a_plain_client_sees_what_the_sweeper_does(backend: RedisBackend, client: redis.Redis) -> None:
    async with Bus([backend.fork()]) as bus:
        tasks = Tasks(bus)
        await tasks.submit("email", {}, id="t-1")
        for _ in range(4):  # the first run, and three retries
            await tasks.claim("email")
            await backend.advance(tasks.default.timeout)
            chores = {"tasks": TaskRecords(backend).settle}
            await Sweeper(backend, Rules(), "tester", chores=chores).run_once()
    record = client.hgetall("gbe:state:tasks:email:t-1")
    assert (record["state"], record["retry_count"]) == ("failed", "3")
    [(_, end)] = client.xrange("gbe:tasks:email:terminal")
    assert json.loads(end["data"])["state"] == "failed"
    assert client.xlen("gbe:_deadletter:email") == 1
    assert client.xlen("gbe:events:system:sweep") == 4
    kinds = [json.loads(fields["data"])["kind"] for _, fields in client.xrange("gbe:events:system:error")]
    assert sorted(kinds) == ["exhausted", "task_failed"]
    assert not client.exists("gbe:lock:sweeper"), "freed by its owner"
