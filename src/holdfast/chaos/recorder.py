"""The recorder: a backend that notes every call before it is made, and every answer after it."""

from __future__ import annotations

import inspect
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any, TypeVar

from holdfast.chaos.history import History, Item
from holdfast.contracts import Backend, Consumer
from holdfast.model.deadletters import Removal
from holdfast.model.errors import Unavailable
from holdfast.model.event import Event, Receipt
from holdfast.model.job import Burial, Job, Retry
from holdfast.model.policy import Policy
from holdfast.model.upkeep import Lock, Trim

T = TypeVar("T")


class Recorded:
    """A backend under observation. Of what moves no event and no job only the errors are noted."""

    def __init__(self, inner: Backend, history: History) -> None:
        self._inner, self._history = inner, history

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if not inspect.iscoroutinefunction(found):
            return found

        async def call(*given: Any, **options: Any) -> Any:
            with self._watched(name):
                return await found(*given, **options)

        return call

    @contextmanager
    def _watched(self, verb: str) -> Iterator[None]:
        """Note what a call raises, with the moment at which it was made."""
        began = time.monotonic_ns()
        try:
            yield
        except Exception as error:
            about = {"verb": verb, "error": type(error).__name__, "message": str(error), "began": began}
            self._history.happened("raised", about)
            raise

    def fork(self) -> Recorded:
        return Recorded(self._inner.fork(), self._history)

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
        return await self._noted(
            "publish",
            items,
            lambda: self._inner.publish(channel, events, at=at, priority=priority, connection=connection),
            lambda receipts: [{"position": r.position, "duplicate": r.duplicate} for r in receipts],
            due=at.isoformat() if at else None,
        )

    async def claim(self, channel: str, consumer: str, limit: int, worker: str) -> list[Job]:
        number = self._history.invoked("claim", [], channel=channel, consumer=consumer, limit=limit)
        with self._watched("claim"):
            jobs = await self._inner.claim(channel, consumer, limit, worker)
        self._history.answered(number, "ok", [_handed_out(job) for job in jobs])
        return jobs

    async def complete(self, jobs: Sequence[Job]) -> list[bool]:
        return await self._noted("complete", [item(job) for job in jobs], lambda: self._inner.complete(jobs))

    async def retry(self, retries: Sequence[Retry]) -> list[bool]:
        items = [item(retry.job) | {"delay": _seconds(retry.delay)} for retry in retries]
        return await self._noted("retry", items, lambda: self._inner.retry(retries))

    async def bury(self, burials: Sequence[Burial]) -> list[bool]:
        items = [item(burial.job) for burial in burials]
        return await self._noted("bury", items, lambda: self._inner.bury(burials))

    async def extend(self, jobs: Sequence[Job], by: timedelta) -> list[bool]:
        items = [item(job) for job in jobs]
        return await self._noted("extend", items, lambda: self._inner.extend(jobs, by))

    async def revive(
        self, channel: str, consumer: str, job_ids: Sequence[str], data: bytes | None = None
    ) -> list[bool]:
        items = [{"channel": channel, "consumer": consumer, "job": job} for job in job_ids]
        return await self._noted(
            "revive", items, lambda: self._inner.revive(channel, consumer, job_ids, data)
        )

    async def purge(self, channel: str, consumer: str, job_ids: Sequence[str]) -> list[bool]:
        items = [{"channel": channel, "consumer": consumer, "job": job} for job in job_ids]
        return await self._noted("purge", items, lambda: self._inner.purge(channel, consumer, job_ids))

    async def cancel(self, channel: str, source: str, event_id: str, consumer: str | None) -> int:
        items = [{"channel": channel, "consumer": consumer, "id": event_id}]

        async def ask() -> list[int]:
            return [await self._inner.cancel(channel, source, event_id, consumer)]

        [count] = await self._noted("cancel", items, ask)
        return count

    async def requeue(self, channel: str, consumer: str, job_id: str) -> bool:
        items = [{"channel": channel, "consumer": consumer, "job": job_id}]

        async def ask() -> list[bool]:
            return [await self._inner.requeue(channel, consumer, job_id)]

        [moved] = await self._noted("requeue", items, ask)
        return moved

    async def set_paused(self, channel: str, consumer: str, paused: bool) -> None:
        items = [{"channel": channel, "consumer": consumer}]

        async def ask() -> list[bool]:
            await self._inner.set_paused(channel, consumer, paused)
            return [paused]

        await self._noted("pause" if paused else "resume", items, ask)

    async def subscribe(
        self, channel: str, consumer: str, policy: Policy, *given: Any, **at: Any
    ) -> Consumer:
        items = [{"channel": channel, "consumer": consumer}]

        async def ask() -> list[Consumer]:
            return [await self._inner.subscribe(channel, consumer, policy, *given, **at)]

        [made] = await self._noted("subscribe", items, ask, lambda made: [each.revision for each in made])
        return made

    async def remove_consumer(self, channel: str, consumer: str, limit: int) -> Removal:
        items = [{"channel": channel, "consumer": consumer}]

        async def ask() -> list[Removal]:
            return [await self._inner.remove_consumer(channel, consumer, limit)]

        [step] = await self._noted("remove", items, ask, lambda steps: [step.done for step in steps])
        return step

    async def trim(self, channel: str, before: datetime, limit: int, lock: Lock, **options: Any) -> Trim:
        items = [{"channel": channel, "lock": lock.name, "token": lock.token}]

        async def ask() -> list[Trim]:
            return [await self._inner.trim(channel, before, limit, lock, **options)]

        [step] = await self._noted("trim", items, ask, lambda steps: [step.removed for step in steps])
        return step

    async def lock(self, name: str, owner: str, ttl: timedelta) -> Lock | None:
        items = [{"lock": name, "owner": owner, "ttl": ttl.total_seconds()}]

        async def ask() -> list[Lock | None]:
            return [await self._inner.lock(name, owner, ttl)]

        [lock] = await self._noted(
            "lock", items, ask, lambda locks: [taken and _held(taken) for taken in locks]
        )
        return lock

    async def renew(self, lock: Lock, ttl: timedelta) -> Lock:
        async def ask() -> list[Lock]:
            return [await self._inner.renew(lock, ttl)]

        [renewed] = await self._noted(
            "renew", [_held(lock)], ask, lambda locks: [_held(each) for each in locks]
        )
        return renewed

    async def unlock(self, lock: Lock) -> bool:
        async def ask() -> list[bool]:
            return [await self._inner.unlock(lock)]

        [freed] = await self._noted("unlock", [_held(lock)], ask)
        return freed

    async def _noted(
        self,
        verb: str,
        items: list[Item],
        ask: Callable[[], Awaitable[list[T]]],
        shown: Callable[[list[T]], list[Any]] = list,
        **about: Any,
    ) -> list[T]:
        number = self._history.invoked(verb, items, **about)
        try:
            with self._watched(verb):
                answers = await ask()
        except Unavailable:
            self._history.answered(number, "unknown")
            raise
        except Exception:
            self._history.answered(number, "failed")
            raise
        self._history.answered(number, "ok", shown(answers))
        return answers


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
