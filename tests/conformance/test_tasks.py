"""Tasks: the task layer's verbs, its channels and its state records."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest

from holdfast import failpoints
from holdfast.bus.client import Bus
from holdfast.contracts import Backend
from holdfast.failpoints import FailpointError
from holdfast.model.deadletters import DeadFilter
from holdfast.model.errors import IdConflict, InvalidInput, LeaseLost
from holdfast.model.event import Event
from holdfast.tasks import Tasks, TaskType
from holdfast.upkeep.rules import Rules
from holdfast.upkeep.sweeper import Sweeper
from holdfast.upkeep.taskrecords import HISTORY, TaskRecords

EMAIL = TaskType(timeout=timedelta(minutes=2), max_retries=1)
QUEUE, PROGRESS, TERMINAL = (f"gbe.tasks.email.{what}" for what in ("queue", "progress", "terminal"))

RETRIED = "gbe.events.system.retry"


@pytest.fixture
def tasks(bus: Bus) -> Tasks:
    return Tasks(bus, types={"email": EMAIL})


async def sweep(backend: Backend) -> int:
    """One sweep; answers how many task records it settled."""
    chores = {"tasks": TaskRecords(backend).settle}
    would = await TaskRecords(backend).forecast()
    report = await Sweeper(backend, Rules(), "tester", chores=chores).run_once()
    assert report is not None
    assert would == report.chores["tasks"] or report.retried or report.buried
    return report.chores["tasks"]


async def told(backend: Backend, channel: str) -> list[Any]:
    return [json.loads(entry.event.data) for entry in await backend.log.read(channel, None, 100)]


async def fields(tasks: Tasks, task: str, *names: str) -> tuple[str, ...]:
    record = await tasks.state("email", task)
    assert record is not None
    return tuple(record[name] for name in names)


async def test_a_task_from_submit_to_its_end(tasks: Tasks, backend: Backend) -> None:
    assert await tasks.submit("email", {"to": "a@example.org"}, id="t-1") == "t-1"
    assert await fields(tasks, "t-1", "state", "retry_count", "max_retries") == ("pending", "0", "1")
    [task] = await tasks.claim("email")
    assert (task.id, task.json(), task.retry_count) == ("t-1", {"to": "a@example.org"}, 0)
    state, timeout = await fields(tasks, "t-1", "state", "timeout_at")
    assert (state, timeout) == ("running", task.job.lease_until.isoformat())
    await tasks.progress(task, {"percent": 50})
    assert await told(backend, PROGRESS) == [{"task_id": "t-1", "type": "email", "data": {"percent": 50}}]
    await tasks.complete(task, {"sent": True})
    assert await fields(tasks, "t-1", "state", "timeout_at") == ("completed", "")
    [end] = await told(backend, TERMINAL)
    assert (end["task_id"], end["state"], end["result"]) == ("t-1", "completed", {"sent": True})
    assert await sweep(backend) == 0


async def test_the_same_submit_again_changes_nothing(tasks: Tasks) -> None:
    for _ in range(2):
        await tasks.submit("email", {"n": 1}, id="t-1")
    assert len(await tasks.claim("email", limit=10)) == 1
    with pytest.raises(IdConflict):
        await tasks.submit("email", {"n": 2}, id="t-1")


async def test_a_failed_run_is_retried_and_then_given_up(tasks: Tasks, backend: Backend) -> None:
    await tasks.submit("email", {}, id="t-1")
    [task] = await tasks.claim("email")
    await tasks.fail(task, "no route")
    assert await fields(tasks, "t-1", "state", "retry_count", "error") == ("pending", "1", "no route")
    await backend.advance(timedelta(minutes=1))
    [task] = await tasks.claim("email")
    assert task.retry_count == 1
    await tasks.fail(task, "no route")
    assert await fields(tasks, "t-1", "state", "retry_count") == ("failed", "1")
    [end] = await told(backend, TERMINAL)
    assert (end["state"], end["error"], end["retry_count"]) == ("failed", "no route", 1)
    [alert] = await told(backend, "gbe.events.system.error")
    assert (alert["kind"], alert["event_id"]) == ("task_failed", "t-1")
    assert [
        entry.event.headers["holdfast-id"]
        for entry in await backend.log.read("gbe._deadletter.email", None, 9)
    ]
    assert await sweep(backend) == 1  # it follows the dead letters, and finds all told already
    assert len(await told(backend, TERMINAL)) == 1


async def test_workers_that_vanish_spend_the_retries(tasks: Tasks, backend: Backend) -> None:
    """The sweeper returns the task to its queue, then gives it up: failed, terminal, alert."""
    await tasks.submit("email", {}, id="t-1")
    await tasks.claim("email")
    await backend.advance(EMAIL.timeout)
    assert await sweep(backend) == 1
    assert await fields(tasks, "t-1", "state", "retry_count") == ("pending", "1")
    assert len(await told(backend, RETRIED)) == 1
    await tasks.claim("email")
    await backend.advance(EMAIL.timeout)
    await sweep(backend)
    assert await fields(tasks, "t-1", "state", "retry_count") == ("failed", "1")
    assert [end["state"] for end in await told(backend, TERMINAL)] == ["failed"]
    kinds = {alert["kind"] for alert in await told(backend, "gbe.events.system.error")}
    assert kinds == {"exhausted", "task_failed"}
    assert await tasks.claim("email") == []


@pytest.mark.parametrize("ends", [("fail", "vanish", "fail"), ("vanish", "fail", "vanish")])
async def test_failures_and_vanished_workers_share_one_budget(
    bus: Bus, backend: Backend, ends: tuple[str, ...]
) -> None:
    tasks = Tasks(bus, types={"email": TaskType(timeout=timedelta(minutes=2), max_retries=2)})
    await tasks.submit("email", {}, id="t-1")
    for retries, end in enumerate(ends):
        [task] = await tasks.claim("email")
        assert task.retry_count == retries
        if end == "fail":
            await tasks.fail(task, "no route")
        await backend.advance(timedelta(minutes=2))
        await sweep(backend)
        wanted = ("failed", "2") if retries == 2 else ("pending", str(retries + 1))
        assert await fields(tasks, "t-1", "state", "retry_count") == wanted
    assert await tasks.claim("email") == []
    assert [end["retry_count"] for end in await told(backend, TERMINAL)] == [2]
    retried = [(each["retry_count"], each["max_retries"]) for each in await told(backend, RETRIED)]
    assert retried == [(place + 1, 2) for place, end in enumerate(ends[:2]) if end == "vanish"]


async def test_records_end_with_the_history(tasks: Tasks, backend: Backend) -> None:
    for name in ("done", "cancelled", "failed", "waiting"):
        await tasks.submit("email", {}, id=name)
    assert await tasks.cancel("email", "cancelled")
    by_id = {task.id: task for task in await tasks.claim("email", limit=2)}
    await tasks.complete(by_id["done"])
    await tasks.fail(by_id["failed"], "no", terminal=True)
    await sweep(backend)
    await backend.advance(HISTORY - timedelta(minutes=1))
    await sweep(backend)
    for name in ("done", "cancelled", "failed", "waiting"):
        assert await tasks.state("email", name) is not None, name
    await backend.advance(timedelta(minutes=2))
    await sweep(backend)
    assert await tasks.state("email", "done") is None
    assert await tasks.state("email", "cancelled") is None
    assert await fields(tasks, "failed", "state") == ("failed",), "its dead letter is there"
    assert await fields(tasks, "waiting", "state") == ("pending",)
    [letter] = (await backend.deadletters.page(DeadFilter(), None, 9)).letters
    assert await backend.deadletters.purge(QUEUE, "workers", [letter.record.id]) == [True]
    await backend.advance(2 * HISTORY)
    await sweep(backend)
    assert await tasks.state("email", "failed") is None
    [task] = await tasks.claim("email")
    assert task.id == "waiting"


async def test_a_slow_worker_cannot_end_somebody_elses_run(tasks: Tasks, backend: Backend) -> None:
    await tasks.submit("email", {}, id="t-1")
    [slow] = await tasks.claim("email")
    await backend.advance(EMAIL.timeout)
    await sweep(backend)
    [quick] = await tasks.claim("email")
    with pytest.raises(LeaseLost):
        await tasks.complete(slow, {"by": "slow"})
    assert await told(backend, TERMINAL) == []
    await tasks.complete(quick, {"by": "quick"})
    assert [end["result"] for end in await told(backend, TERMINAL)] == [{"by": "quick"}]


async def test_cancel_is_for_tasks_that_wait(tasks: Tasks, backend: Backend) -> None:
    await tasks.submit("email", {}, id="t-1")
    await tasks.submit("email", {}, id="t-2")
    assert await tasks.cancel("email", "t-1")
    assert await fields(tasks, "t-1", "state") == ("cancelled",)
    [task] = await tasks.claim("email", limit=10)
    assert task.id == "t-2"
    assert not await tasks.cancel("email", "t-2")
    assert await fields(tasks, "t-2", "state") == ("running",)
    assert not await tasks.cancel("email", "unknown")


@pytest.mark.parametrize("point", ["tasks.after_finalize", "tasks.after_terminal"])
async def test_a_worker_that_dies_after_the_end_leaves_it_to_the_sweeper(
    tasks: Tasks, backend: Backend, point: str
) -> None:
    await tasks.submit("email", {}, id="t-1")
    [task] = await tasks.claim("email")
    with failpoints.active(point, "raise"), pytest.raises(FailpointError):
        await tasks.complete(task, {"sent": True})
    assert await fields(tasks, "t-1", "state") == ("running",)
    await backend.advance(3 * EMAIL.timeout)
    assert await sweep(backend) == 1
    assert await fields(tasks, "t-1", "state") == ("completed",)
    assert [end["result"] for end in await told(backend, TERMINAL)] == [{"sent": True}]
    assert await sweep(backend) == 0


async def test_a_worker_that_dies_before_the_end_runs_again(tasks: Tasks, backend: Backend) -> None:
    await tasks.submit("email", {}, id="t-1")
    [task] = await tasks.claim("email")
    with failpoints.active("tasks.after_result", "raise"), pytest.raises(FailpointError):
        await tasks.complete(task, {"sent": True})
    await backend.advance(3 * EMAIL.timeout)
    await sweep(backend)
    assert await fields(tasks, "t-1", "state") == ("pending",)
    [again] = await tasks.claim("email")
    assert again.retry_count == 1


async def test_a_sweep_that_dies_over_the_dead_letters_tells_them_once(
    tasks: Tasks, backend: Backend
) -> None:
    await tasks.submit("email", {}, id="t-1")
    [task] = await tasks.claim("email")
    with failpoints.active("tasks.after_finalize", "raise"), pytest.raises(FailpointError):
        await tasks.fail(task, "broken", terminal=True)
    with failpoints.active("tasks.before_cursor", "raise"), pytest.raises(FailpointError):
        await sweep(backend)
    await sweep(backend)
    assert await fields(tasks, "t-1", "state", "error") == ("failed", "broken")
    assert len(await told(backend, TERMINAL)) == 1
    assert len(await told(backend, "gbe.events.system.error")) == 1


async def test_what_is_put_on_the_queue_without_the_helper_is_a_task_too(
    tasks: Tasks, backend: Backend
) -> None:
    await tasks.claim("email")  # the queue has its workers
    await backend.log.publish(QUEUE, [Event({"n": 1}, "plain")])
    [task] = await tasks.claim("email")
    assert await fields(tasks, "plain", "state") == ("running",)
    await tasks.complete(task)
    assert await fields(tasks, "plain", "state") == ("completed",)


async def test_types_without_terms_have_the_default(bus: Bus) -> None:
    tasks = Tasks(bus)
    await tasks.submit("report", {}, id="r-1")
    record = await tasks.state("report", "r-1")
    assert record is not None
    assert record["max_retries"] == "3"
    assert await tasks.state("report", "unknown") is None


@pytest.mark.parametrize(("kind", "task"), [("e.mail", "t"), ("", "t"), ("email", "a b"), ("*", "t")])
async def test_names_that_cannot_be_keys_are_refused(tasks: Tasks, kind: str, task: str) -> None:
    with pytest.raises(InvalidInput):
        await tasks.submit(kind, {}, id=task)
