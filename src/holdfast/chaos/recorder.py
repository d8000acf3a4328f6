"""The recorder: a backend that notes every call before it is made, and every answer after it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime, timedelta
from typing import Any, TypeVar

from holdfast.chaos.history import History, Item
from holdfast.contracts import Backend
from holdfast.model.errors import Unavailable
from holdfast.model.event import Event, Receipt
from holdfast.model.job import Burial, Job, Retry
from holdfast.model.upkeep import Lock, Trim

T = TypeVar("T")


class Recorded:
    """A backend under observation. What moves no event and no job goes straight through."""

    def __init__(self, inner: Backend, history: History) -> None:
        self._inner, self._history = inner, history

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

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
        )

    async def claim(self, channel: str, consumer: str, limit: int, worker: str) -> list[Job]:
        number = self._history.invoked("claim", [])
        jobs = await self._inner.claim(channel, consumer, limit, worker)
        self._history.answered(number, "ok", [item(job) for job in jobs])
        return jobs

    async def complete(self, jobs: Sequence[Job]) -> list[bool]:
        return await self._noted("complete", [item(job) for job in jobs], lambda: self._inner.complete(jobs))

    async def retry(self, retries: Sequence[Retry]) -> list[bool]:
        items = [item(retry.job) for retry in retries]
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
    ) -> list[T]:
        number = self._history.invoked(verb, items)
        try:
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


def item(job: Job) -> Item:
    """A leased job as it is noted."""
    return {
        "channel": job.channel,
        "consumer": job.consumer,
        "job": job.id,
        "token": job.token,
        "until": job.lease_until.isoformat(),
        "position": job.position,
        "id": job.event.id,
        "key": job.event.key,
        "data": job.event.data.decode(),
    }
