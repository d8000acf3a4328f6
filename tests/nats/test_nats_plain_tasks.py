"""The task layer for a client that knows only NATS: it submits, and sees progress, ends and state."""

from __future__ import annotations

import json
from typing import Any

from nats.aio.client import Client

from holdfast.backends.nats import NatsBackend
from holdfast.bus.client import Bus
from holdfast.tasks import Tasks
from holdfast.upkeep.rules import Rules
from holdfast.upkeep.sweeper import Sweeper
from holdfast.upkeep.taskrecords import TaskRecords


async def last(client: Client, subject: str) -> Any:
    message = await client.jetstream().get_last_msg("HOLDFAST", subject)
    return json.loads(message.data or b"")


async def record(client: Client) -> Any:
    bucket = await client.jetstream().key_value("gbe_state")
    return json.loads((await bucket.get("tasks.email.t-1")).value or b"")


async def test_a_plain_client_drives_a_task_and_sees_its_life(backend: NatsBackend, client: Client) -> None:
    async with Bus([backend.fork()]) as bus:
        tasks = Tasks(bus)
        await tasks.claim("email")  # the workers are there
        data, headers = json.dumps({"to": "a@example.org"}).encode(), {"ce-id": "t-1"}
        await client.jetstream().publish("gbe.tasks.email.queue", data, headers=headers)
        [task] = await tasks.claim("email")
        assert (task.id, task.json()) == ("t-1", {"to": "a@example.org"})
        running = await record(client)
        assert (running["state"], running["retry_count"], running["max_retries"]) == ("running", "0", "3")
        assert running["timeout_at"] == task.job.lease_until.isoformat()
        await tasks.progress(task, {"percent": 50})
        assert (await last(client, "gbe.tasks.email.progress"))["data"] == {"percent": 50}
        await tasks.complete(task, {"sent": True})
        assert (await last(client, "gbe.tasks.email.terminal"))["state"] == "completed"
        assert (await record(client))["state"] == "completed"


async def test_a_plain_client_sees_what_the_sweeper_does(backend: NatsBackend, client: Client) -> None:
    async with Bus([backend.fork()]) as bus:
        tasks = Tasks(bus)
        await tasks.submit("email", {}, id="t-1")
        for _ in range(4):  # the first run, and three retries
            await tasks.claim("email")
            await backend.advance(tasks.default.timeout)
            chores = {"tasks": TaskRecords(backend).settle}
            await Sweeper(backend, Rules(), "tester", chores=chores).run_once()
    failed = await record(client)
    assert (failed["state"], failed["retry_count"]) == ("failed", "3")
    assert (await last(client, "gbe.tasks.email.terminal"))["state"] == "failed"
    assert await last(client, "gbe._deadletter.email") == {}
    assert (await last(client, "gbe.events.system.sweep"))["chores"] == {"tasks": 1}
