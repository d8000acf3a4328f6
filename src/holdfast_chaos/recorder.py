"""The recorder: a backend that notes every call before it is made, and every answer after it."""

from __future__ import annotations

import inspect
import random
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

from holdfast.contracts import WAITING_ONLY, Backend, Consumer
from holdfast.model.deadletters import Removal
from holdfast.model.errors import Unavailable
from holdfast.model.event import Event, Receipt
from holdfast.model.job import Burial, Cancellation, Job, Retry
from holdfast.model.policy import Policy
from holdfast.model.upkeep import Lock, Trim
from holdfast.wiring import backend
from holdfast_chaos.faulty_backend import DuplicateCalls
from holdfast_chaos.history import History, Item

T = TypeVar("T")


def connect(spec: dict[str, Any]) -> tuple[Backend, History]:
    """A backend for a process, not opened yet, and the history of its calls.

    From the specification: url, history, and optionally noise, a seed: then some calls are sent twice.
    """
    history, inner = History(Path(spec["history"])), backend(spec["url"])
    if "noise" in spec:
        doubled: Any = DuplicateCalls(inner, random.Random(spec["noise"]))
        inner = doubled
    return recorded(inner, history), history


def recorded(inner: Backend, history: History) -> Backend:
    """A backend whose calls go to a history."""
    watched: Any = Recorded(inner, history)
    opened: Backend = watched
    return opened


class Recorded:
    """A backend under observation. Of what moves no event and no job only the errors are noted."""

    def __init__(self, inner: Backend, history: History) -> None:
        self._inner, self._history = inner, history
        self.channels = RecordedChannels("channels", inner, history)
        self.log = RecordedLog("log", inner, history)
        self.leases = RecordedLeases("leases", inner, history)
        self.deadletters = RecordedDeadLetters("deadletters", inner, history)
        self.locks = RecordedLocks("locks", inner, history)
        self.retention = RecordedRetention("retention", inner, history)
        self.lifecycle = RecordedNoun("lifecycle", inner, history)
        self.cursors = RecordedNoun("cursors", inner, history)
        self.groups = RecordedNoun("groups", inner, history)
        self.records = RecordedNoun("records", inner, history)

    def __getattr__(self, name: str) -> Any:
        return _watching(getattr(self._inner, name), name, self._history)

    def fork(self) -> Recorded:
        return Recorded(self._inner.fork(), self._history)


def _watching(found: Any, verb: str, history: History) -> Any:
    """The same attribute; if it is a verb, what it raises is noted."""
    if not inspect.iscoroutinefunction(found):
        return found

    async def call(*given: Any, **options: Any) -> Any:
        with _watched(verb, history):
            return await found(*given, **options)

    return call


@contextmanager
def _watched(verb: str, history: History) -> Iterator[None]:
    """Note what a call raises, with the moment at which it was made."""
    began = time.monotonic_ns()
    try:
        yield
    except Exception as error:
        about = {"verb": verb, "error": type(error).__name__, "message": str(error), "began": began}
        history.happened("raised", about)
        raise


class RecordedNoun:
    """One noun. Of verbs that a subclass does not override only the errors are noted."""

    def __init__(self, noun: str, inner: Backend, history: History) -> None:
        self._noun, self._inner, self._history = noun, inner, history

    def __getattr__(self, name: str) -> Any:
        return _watching(getattr(getattr(self._inner, self._noun), name), name, self._history)

    async def _note(
        self,
        verb: str,
        items: list[Item],
        ask: Callable[[], Awaitable[list[T]]],
        shown: Callable[[list[T]], list[Any]] = list,
        **about: Any,
    ) -> list[T]:
        """Make a call that has an answer for each item; `shown` is what is noted of the answers."""
        number = self._history.invoked(verb, items, **about)
        try:
            with _watched(verb, self._history):
                answers = await ask()
        except Unavailable:
            self._history.answered(number, "unknown")
            raise
        except Exception:
            self._history.answered(number, "failed")
            raise
        self._history.answered(number, "ok", shown(answers))
        return answers

    async def _note_one(
        self, verb: str, item: Item, answer: Awaitable[T], shown: Callable[[T], Any] = lambda answer: answer
    ) -> T:
        """The same for a call about one item. The answer is awaited after the call was noted."""

        async def ask() -> list[T]:
            return [await answer]

        [found] = await self._note(verb, [item], ask, lambda answers: [shown(each) for each in answers])
        return found


class RecordedChannels(RecordedNoun):
    async def set_paused(self, channel: str, consumer: str, paused: bool) -> None:
        call = self._inner.channels.set_paused(channel, consumer, paused)
        await self._note_one(
            "pause" if paused else "resume", _owner(channel, consumer), call, lambda _: paused
        )

    async def subscribe(
        self, channel: str, consumer: str, policy: Policy, *given: Any, **at: Any
    ) -> Consumer:
        call = self._inner.channels.subscribe(channel, consumer, policy, *given, **at)
        return await self._note_one("subscribe", _owner(channel, consumer), call, lambda made: made.revision)

    async def remove_consumer(self, channel: str, consumer: str, limit: int) -> Removal:
        call = self._inner.channels.remove_consumer(channel, consumer, limit)
        return await self._note_one("remove", _owner(channel, consumer), call, lambda step: step.done)


class RecordedLog(RecordedNoun):
    async def publish(
        self,
        channel: str,
        events: Sequence[Event],
        *,
        at: datetime | None = None,
        priority: int = 0,
        connection: Any = None,
    ) -> list[Receipt]:
        items = [
            {"channel": channel, "id": event.id, "key": event.key, "data": event.data.decode()}
            for event in events
        ]
        return await self._note(
            "publish",
            items,
            lambda: self._inner.log.publish(channel, events, at=at, priority=priority, connection=connection),
            lambda receipts: [{"position": r.position, "duplicate": r.duplicate} for r in receipts],
            due=at.isoformat() if at else None,
        )


class RecordedLeases(RecordedNoun):
    async def claim(self, channel: str, consumer: str, limit: int, worker: str) -> list[Job]:
        number = self._history.invoked("claim", [], channel=channel, consumer=consumer, limit=limit)
        with _watched("claim", self._history):
            jobs = await self._inner.leases.claim(channel, consumer, limit, worker)
        self._history.answered(number, "ok", [_handed_out(job) for job in jobs])
        return jobs

    async def complete(self, jobs: Sequence[Job]) -> list[bool]:
        items = [item(job) for job in jobs]
        return await self._note("complete", items, lambda: self._inner.leases.complete(jobs))

    async def retry(self, retries: Sequence[Retry]) -> list[bool]:
        items = [item(retry.job) | {"delay": _seconds(retry.delay)} for retry in retries]
        return await self._note("retry", items, lambda: self._inner.leases.retry(retries))

    async def bury(self, burials: Sequence[Burial]) -> list[bool]:
        items = [item(burial.job) for burial in burials]
        return await self._note("bury", items, lambda: self._inner.leases.bury(burials))

    async def extend(self, jobs: Sequence[Job], by: timedelta) -> list[bool]:
        items = [item(job) for job in jobs]
        return await self._note("extend", items, lambda: self._inner.leases.extend(jobs, by))

    async def cancel(
        self,
        channel: str,
        source: str,
        event_id: str,
        consumer: str | None,
        how: Cancellation = WAITING_ONLY,
    ) -> int:
        about = {"channel": channel, "consumer": consumer, "id": event_id, "running": how.running}
        call = self._inner.leases.cancel(channel, source, event_id, consumer, how)
        return await self._note_one("cancel", about, call)

    async def cancel_waiting(self, channel: str, consumer: str, limit: int) -> int:
        call = self._inner.leases.cancel_waiting(channel, consumer, limit)
        return await self._note_one("empty", _owner(channel, consumer), call)

    async def requeue(self, channel: str, consumer: str, job_id: str) -> bool:
        about = _owner(channel, consumer) | {"job": job_id}
        return await self._note_one("requeue", about, self._inner.leases.requeue(channel, consumer, job_id))


class RecordedDeadLetters(RecordedNoun):
    async def revive(
        self, channel: str, consumer: str, job_ids: Sequence[str], data: bytes | None = None
    ) -> list[bool]:
        items = [_owner(channel, consumer) | {"job": job} for job in job_ids]
        return await self._note(
            "revive", items, lambda: self._inner.deadletters.revive(channel, consumer, job_ids, data)
        )

    async def purge(self, channel: str, consumer: str, job_ids: Sequence[str]) -> list[bool]:
        items = [_owner(channel, consumer) | {"job": job} for job in job_ids]
        return await self._note(
            "purge", items, lambda: self._inner.deadletters.purge(channel, consumer, job_ids)
        )


class RecordedLocks(RecordedNoun):
    async def acquire(self, name: str, owner: str, ttl: timedelta) -> Lock | None:
        about = {"lock": name, "owner": owner, "ttl": ttl.total_seconds()}
        call = self._inner.locks.acquire(name, owner, ttl)
        return await self._note_one("lock", about, call, lambda taken: taken and _held(taken))

    async def renew(self, lock: Lock, ttl: timedelta) -> Lock:
        return await self._note_one("renew", _held(lock), self._inner.locks.renew(lock, ttl), _held)

    async def release(self, lock: Lock) -> bool:
        return await self._note_one("unlock", _held(lock), self._inner.locks.release(lock))


class RecordedRetention(RecordedNoun):
    async def trim(self, channel: str, before: datetime, limit: int, lock: Lock, **options: Any) -> Trim:
        about = {"channel": channel, "lock": lock.name, "token": lock.token}
        call = self._inner.retention.trim(channel, before, limit, lock, **options)
        return await self._note_one("trim", about, call, lambda step: step.removed)


def _owner(channel: str, consumer: str) -> Item:
    return {"channel": channel, "consumer": consumer}


def _held(lock: Lock) -> Item:
    return {"lock": lock.name, "token": lock.token, "until": lock.until.isoformat()}


def _seconds(delay: timedelta | None) -> float:
    return delay.total_seconds() if delay else 0.0


def item(job: Job) -> Item:
    """A leased job as it is noted."""
    return {
        "channel": job.channel,
        "consumer": job.consumer,
        "job": job.id,
        "token": job.token,
        "id": job.event.id,
    }


def _handed_out(job: Job) -> Item:
    """All that a worker is told of it."""
    return item(job) | {
        "abandonments": job.abandonments,
        "until": job.lease_until.isoformat(),
        "position": job.position,
        "key": job.event.key,
        "data": job.event.data.decode(),
    }
