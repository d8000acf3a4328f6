"""Task records: `{namespace}.state.tasks.TYPE.ID`, kept equal to what the task's job says.

A record is a projection, never the truth: whoever moves a job brings its record up to date afterwards, and
the sweeper does it for whoever died in between. It finds them by two ways that cost nothing while all goes
well: a running task's record is due when its lease ends, and every task that was given up stands in its
dead-letter channel, which the sweeper follows with a cursor. Every other record is due after the time for
which the history of jobs is kept: one of a task that waits is compared then, one of an ended task removed.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta

import orjson

from holdfast import failpoints
from holdfast.contracts import Backend
from holdfast.model.event import DEFAULT_SOURCE, Event
from holdfast.model.job import JobRecord
from holdfast.model.names import matches
from holdfast.model.states import LIVE, State
from holdfast.model.upkeep import StateRecord
from holdfast.upkeep.announcements import SOURCE, Alert, announce

WORKERS = "workers"
"""The worker consumer of every task queue."""
_FOLLOWER = "sweeper"
_PAGE, _PAGES = 500, 20
HISTORY = timedelta(days=7)

STATES = {
    State.SCHEDULED: "pending",
    State.READY: "pending",
    State.LEASED: "running",
    State.DONE: "completed",
    State.CANCELLED: "cancelled",
    State.DEAD: "failed",
    State.DISCARDED: "failed",
    State.PURGED: "failed",
}
TERMINAL = frozenset({"completed", "cancelled", "failed"})
UNKNOWN = "unknown"
ENDED = TERMINAL | {UNKNOWN}


def project(job: JobRecord, max_retries: int, old: Mapping[str, str], now: datetime) -> dict[str, str]:
    """The record of a task whose job is in this state. A result that was written before is kept."""
    error = job.errors[-1].get("error", "") if job.errors else ""
    return {
        "state": STATES[job.state],
        "updated_at": now.isoformat(),
        "timeout_at": job.lease_until.isoformat() if job.lease_until else "",
        "retry_count": str(_retries(job)),
        "max_retries": str(max_retries),
        "worker": job.worker or "",
        "error": error,
        "result": old.get("result", ""),
    }


def _retries(job: JobRecord) -> int:
    """Runs after the first one, or for a task that waits, with the one it waits for."""
    first = 0 if job.state in (State.SCHEDULED, State.READY, State.CANCELLED) else 1
    return max(0, job.attempts + job.abandonments - first)


def _ended_at(record: StateRecord, now: datetime) -> datetime:
    try:
        return datetime.fromisoformat(record.fields["updated_at"])
    except (KeyError, ValueError):  # another client has written it
        return now


class TaskRecords:
    """The task records of one store."""

    def __init__(self, backend: Backend, namespace: str = "gbe", history: timedelta = HISTORY) -> None:
        self._backend, self._namespace, self._history = backend, namespace, history

    def key(self, kind: str, task: str) -> str:
        """The key of a task's record."""
        return f"{self._namespace}.state.tasks.{kind}.{task}"

    def channel(self, kind: str, what: str) -> str:
        """The task channel `queue`, `progress` or `terminal` of a type."""
        return f"{self._namespace}.tasks.{kind}.{what}"

    def dead_letters(self, kind: str) -> str:
        """The dead-letter channel of a type."""
        return f"{self._namespace}._deadletter.{kind}"

    async def job(self, kind: str, task: str) -> JobRecord | None:
        """The task's job, as far as the store still knows it."""
        jobs = await self._backend.leases.find_jobs(self.channel(kind, "queue"), DEFAULT_SOURCE, task)
        return next((job for job in jobs if job.consumer == WORKERS), None)

    async def update(self, kind: str, task: str) -> dict[str, str]:
        """Make the record say what the job says; a task that has ended is announced first, once."""
        key = self.key(kind, task)
        while True:
            job, old = await self.job(kind, task), await self._backend.records.get(key)
            known = old or StateRecord(key, {}, 0)
            if job is None:
                return dict(known.fields)
            policy = (await self._backend.channels.consumer(job.channel, WORKERS)).policy
            runs = policy.max_runs or policy.max_abandonments
            now = await self._backend.now()
            fields = project(job, runs - 1, known.fields, now)
            if fields["state"] in TERMINAL:
                await self._announce(kind, task, fields, job.token)
                failpoints.hit("tasks.after_terminal")
            due = job.lease_until or now + self._history
            if await self._backend.records.put(key, fields, known.revision, due) is not None:
                return fields

    async def set_result(self, kind: str, task: str, result: bytes, due: datetime) -> None:
        """Keep a result before the job is finished: whoever ends the task finds it there."""
        key = self.key(kind, task)
        while True:
            old = await self._backend.records.get(key) or StateRecord(key, {}, 0)
            fields = {**old.fields, "result": result.decode()}
            if await self._backend.records.put(key, fields, old.revision, due) is not None:
                return

    async def settle(self) -> int:
        """The sweeper's chore: records that fell behind or have had their time, and tasks given up."""
        settled = await self._settle_given_up()
        prefix = f"{self._namespace}.state.tasks."
        for _ in range(_PAGES):
            found = await self._backend.records.due(prefix, _PAGE)
            for record in found:
                await self._settle(record, *record.key.removeprefix(prefix).rpartition(".")[::2])
            settled += len(found)
            if len(found) < _PAGE:
                break
        return settled

    async def _settle(self, record: StateRecord, kind: str, task: str) -> None:
        """A record that is due: bring it up to date, or remove it where the task ended long enough ago.

        A task among the dead letters keeps its record for as long as it is there.
        """
        job, now = await self.job(kind, task), await self._backend.now()
        if record.fields.get("state") not in ENDED:
            if job is not None:
                await self.update(kind, task)
                return
            # Its history was forgotten while nobody swept: nobody can say any more how it ended.
            fields = {**record.fields, "state": UNKNOWN, "timeout_at": "", "updated_at": now.isoformat()}
            await self._backend.records.put(record.key, fields, record.revision, now + self._history)
        elif job is not None and job.state in LIVE:  # requeued
            await self.update(kind, task)
        elif job is not None and job.state is State.DEAD:
            await self._backend.records.put(record.key, record.fields, record.revision, now + self._history)
        elif (end := _ended_at(record, now) + self._history) > now:  # written under a shorter history
            await self._backend.records.put(record.key, record.fields, record.revision, end)
        else:
            await self._backend.records.remove(record.key, record.revision)

    async def forecast(self) -> int:
        """How many `settle` would bring up to date now."""
        given_up, prefix = await self._unsettled(), f"{self._namespace}.state.tasks."
        due = {record.key for record in await self._backend.records.due(prefix, _PAGE * _PAGES)}
        return len(given_up) + len(due - set(given_up))

    async def _unsettled(self) -> list[str]:
        """The keys of tasks that were given up since the sweeper last looked."""
        found = []
        for channel in await self._dead_letter_channels():
            cursors = {cursor.name: cursor.position for cursor in await self._backend.cursors.all(channel)}
            position = cursors.get(_FOLLOWER)
            while entries := await self._backend.log.read(channel, position, _PAGE):
                tasks = [self._task(channel, entry.event) for entry in entries]
                found += [self.key(*task) for task in tasks if task is not None]
                position = entries[-1].position
        return found

    async def _dead_letter_channels(self) -> list[str]:
        pattern = f"{self._namespace}._deadletter.*"
        return [channel for channel in await self._backend.channels.names() if matches(pattern, channel)]

    async def _settle_given_up(self) -> int:
        settled = 0
        for channel in await self._dead_letter_channels():
            cursor = await self._backend.cursors.attach(channel, _FOLLOWER, "earliest")
            position = cursor.position
            while entries := await self._backend.log.read(channel, position, _PAGE):
                for entry in entries:
                    settled += await self._given_up(channel, entry.event)
                failpoints.hit("tasks.before_cursor")
                if not await self._backend.cursors.move(channel, _FOLLOWER, position, entries[-1].position):
                    break
                position = entries[-1].position
        return settled

    async def _given_up(self, channel: str, event: Event) -> bool:
        task = self._task(channel, event)
        return task is not None and bool(await self.update(*task))

    def _task(self, channel: str, event: Event) -> tuple[str, str] | None:
        """The type and the id of the task that a dead letter is of, if it is of one."""
        kind, task = channel.rpartition(".")[2], event.headers.get("holdfast-id")
        if task is None or event.headers.get("holdfast-channel") != self.channel(kind, "queue"):
            return None
        return kind, task

    async def _announce(self, kind: str, task: str, fields: Mapping[str, str], token: int) -> None:
        """Publish the end, and an alert where it failed. The ids make a repeat a duplicate."""
        state, retries = fields["state"], fields["retry_count"]
        end = {"task_id": task, "type": kind, "state": state, "retry_count": int(retries)}
        if state == "completed":
            end["result"] = orjson.loads(fields["result"]) if fields["result"] else None
        else:
            end["error"] = fields["error"]
        name = f"{task}#{token}"  # a task that was requeued and ends again is announced again
        event = Event(end, name, SOURCE, f"task.{state}", key=task)
        await self._backend.log.publish(self.channel(kind, "terminal"), [event])
        if state == "failed":
            alert = Alert(
                kind="task_failed",
                message=f"task {task} of type {kind} failed after {retries} retries: {fields['error']}",
                channel=self.channel(kind, "queue"),
                consumer=WORKERS,
                event_id=task,
                count=int(retries),
            )
            await announce(self._backend, self._namespace, alert, f"task:{kind}:{name}")
