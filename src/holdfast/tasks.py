"""Tasks: submit, claim, progress, complete, fail and cancel, under the names of the task layer.

A task is an event on `gbe.tasks.TYPE.queue`, its work a job of the consumer `workers`, so that leases,
retries, fencing and dead letters are the bus's own. Progress and ends are published on `…progress` and
`…terminal`, and `gbe.state.tasks.TYPE.ID` has its state for clients that know only Redis or NATS.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from holdfast import failpoints
from holdfast.bus.client import Bus
from holdfast.bus.partitions import home
from holdfast.model.errors import InvalidInput
from holdfast.model.event import Event, encode_data, new_id
from holdfast.model.job import Job
from holdfast.model.names import check_token
from holdfast.upkeep.announcements import SOURCE
from holdfast.upkeep.taskrecords import WORKERS, TaskRecords


@dataclass(frozen=True, slots=True)
class TaskType:
    """How long one run of a task may stay silent, and how often it is run again after the first time."""

    timeout: timedelta = timedelta(minutes=5)
    max_retries: int = 3


@dataclass(slots=True)
class Task:
    """A task under our lease."""

    type: str
    id: str
    data: bytes
    retry_count: int
    job: Job

    def json(self) -> Any:
        """Return the data as a JSON value."""
        return self.job.event.json()


@dataclass(slots=True)
class Tasks:
    """The task layer on an open bus."""

    bus: Bus
    namespace: str = "gbe"
    types: Mapping[str, TaskType] = field(default_factory=dict)
    default: TaskType = TaskType()
    _known: set[str] = field(default_factory=set)

    async def submit(
        self,
        kind: str,
        data: Any,
        *,
        id: str | None = None,  # noqa: A002 - CloudEvents' own name
        key: str | None = None,
        headers: dict[str, str] | None = None,
        at: datetime | None = None,
        priority: int = 0,
    ) -> str:
        """Queue a task and return its id. The same id with the same data again changes nothing."""
        await self._ensure_type(kind)
        task = check_token(id or new_id(), "task id")
        options: dict[str, Any] = {"key": key, "headers": headers, "at": at, "priority": priority}
        channel = self._queue(kind)
        await self.bus.publish(channel, data, id=task, type=f"task.{kind}", **options)
        failpoints.hit("tasks.after_submit")
        index = home(channel, Event(b"", task, key=key), len(self.bus.partitions.all))
        await self._records(index or 0).update(kind, task)
        return task

    async def claim(self, kind: str, *, limit: int = 1) -> list[Task]:
        """Lease up to `limit` tasks; an empty list when there is nothing."""
        await self._ensure_type(kind)
        jobs = await self.bus.poll(self._queue(kind), WORKERS, limit=limit)
        failpoints.hit("tasks.after_claim")
        for job in jobs:
            await self._records(job.partition).update(kind, job.event.id)
        return [
            Task(kind, job.event.id, job.event.data, job.attempt + job.abandonments - 1, job) for job in jobs
        ]

    async def progress(self, task: Task, data: Any) -> None:
        """Publish how far it is, and extend the lease: its full time starts anew."""
        await self.bus.extend(task.job, self._type(task.type).timeout)
        told = {"task_id": task.id, "type": task.type, "data": data}
        channel = f"{self.namespace}.tasks.{task.type}.progress"
        await self.bus.publish(channel, told, source=SOURCE, type="task.progress", key=task.id)
        await self._records(task.job.partition).update(task.type, task.id)

    async def complete(self, task: Task, result: Any = None) -> None:
        """End the task. Raises `LeaseLost`, and publishes nothing, where another worker has it by now."""
        records = self._records(task.job.partition)
        due = task.job.lease_until + self._type(task.type).timeout
        await records.set_result(task.type, task.id, encode_data(result), due)
        failpoints.hit("tasks.after_result")
        await self.bus.finalize(task.job, success=True)
        failpoints.hit("tasks.after_finalize")
        await records.update(task.type, task.id)

    async def fail(self, task: Task, error: BaseException | str, *, terminal: bool = False) -> None:
        """This run failed: it is retried with backoff while the budget lasts. `terminal` gives up at once."""
        await self.bus.finalize(task.job, success=False, error=error, terminal=terminal)
        failpoints.hit("tasks.after_finalize")
        await self._records(task.job.partition).update(task.type, task.id)

    async def cancel(self, kind: str, task: str) -> bool:
        """Cancel a task that nobody works on. Returns False where there is none that waits."""
        cancelled = await self.bus.cancel(self._queue(kind), task, consumer=WORKERS)
        for index in range(len(self.bus.partitions.all)):
            await self._records(index).update(kind, task)
        return cancelled > 0

    async def state(self, kind: str, task: str) -> dict[str, str] | None:
        """Return the task's record: `state, updated_at, timeout_at, retry_count, max_retries` and more."""
        for index in range(len(self.bus.partitions.all)):
            records = self._records(index)
            found = await self.bus.partitions.all[index].backend.records.get(records.key(kind, task))
            if found is not None:
                return dict(found.fields)
        return None

    def _records(self, index: int) -> TaskRecords:
        return TaskRecords(self.bus.partitions.all[index].backend, self.namespace)

    def _queue(self, kind: str) -> str:
        return f"{self.namespace}.tasks.{check_token(kind, 'task type')}.queue"

    def _type(self, kind: str) -> TaskType:
        return self.types.get(kind, self.default)

    async def _ensure_type(self, kind: str) -> None:
        """Create the queue, its consumer and its dead-letter channel, once per process."""
        if kind in self._known:
            return
        policy = self._type(kind)
        if policy.max_retries < 0:
            raise InvalidInput(f"max_retries {policy.max_retries} of task type {kind!r} is negative")
        dead_letter = f"{self.namespace}._deadletter.{check_token(kind, 'task type')}"
        await self.bus.create_channel(dead_letter)
        runs = policy.max_retries + 1
        await self.bus.subscribe(
            self._queue(kind),
            WORKERS,
            start="earliest",
            lease=policy.timeout,
            max_attempts=runs,
            max_abandonments=runs,
            max_runs=runs,
            dead_letter=dead_letter,
        )
        self._known.add(kind)
