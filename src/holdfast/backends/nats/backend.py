"""NATS JetStream as a Holdfast backend: one store, and one object per noun."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any

from holdfast.backends.nats import checks
from holdfast.backends.nats.consumers import Consumers
from holdfast.backends.nats.entries import Entries
from holdfast.backends.nats.ingest import Ingest
from holdfast.backends.nats.keys import Keys
from holdfast.backends.nats.leases import Leases
from holdfast.backends.nats.lifecycle import Lifecycle
from holdfast.backends.nats.listener import NatsListener
from holdfast.backends.nats.log import Log
from holdfast.backends.nats.operators import Operators
from holdfast.backends.nats.publishing import Publishing
from holdfast.backends.nats.store import Store
from holdfast.backends.nats.times import from_micros, to_micros
from holdfast.backends.nats.transitions import Transitions
from holdfast.contracts import (
    Applied,
    Capabilities,
    ChannelStats,
    Consumer,
    ConsumerStats,
    Finding,
    Reading,
    Start,
)
from holdfast.model.decide import Action
from holdfast.model.duration import parse_duration
from holdfast.model.errors import Duration
from holdfast.model.event import Event, LogEntry, Receipt
from holdfast.model.job import Burial, Job, JobRecord, Retry
from holdfast.model.policy import Policy


class NatsBackend:
    """One JetStream stream. The contract's prose stands in `holdfast.contracts`.

    One connection carries everything, since a batch must stay in order; `connections` is there because every
    backend has it. `history` is how long a job is remembered after it was done, cancelled or discarded; dead
    letters and idempotency keys stay.
    """

    capabilities = Capabilities(joins_transactions=False, foreign_appends=True)

    def __init__(self, url: str, *, connections: int = 1, history: Duration = "7d") -> None:
        self.url = url
        self._history = history
        seconds = max(int(parse_duration(history, what="history").total_seconds()), 1)
        store = self._store = Store(url, seconds)
        entries = Entries(store)
        keys = Keys(store, entries)
        ingest = self._ingest = Ingest(store, entries, keys)
        transitions = Transitions(store, entries)
        self._log = Log(store, entries, Publishing(store, entries, keys, ingest))
        self._leases = Leases(store, entries, ingest, transitions)
        self._consumers = Consumers(store, entries, ingest)
        self._lifecycle = Lifecycle(store, ingest, transitions)
        self._operators = Operators(store, keys, ingest, transitions)

    async def open(self) -> list[str]:
        await self._store.open()
        return []

    async def close(self) -> None:
        await self._store.close()

    def fork(self) -> NatsBackend:
        return NatsBackend(self.url, history=self._history)

    async def now(self) -> datetime:
        return from_micros(await self._store.fresh())

    async def advance(self, by: timedelta) -> None:
        await self._store.fresh()
        last = int((await self._store.info())["state"]["last_seq"])
        await self._store.change_registry(lambda known: known.with_offset(to_micros(by), last))

    async def check(self) -> list[Finding]:
        return await checks.check(self._store.link)

    async def create_channel(self, channel: str) -> None:
        await self._store.recognise()
        await self._store.ensure_channel(channel)

    async def channels(self) -> list[str]:
        return await self._consumers.channels()

    async def channel_stats(self, channel: str) -> ChannelStats:
        return await self._consumers.channel_stats(channel)

    async def subscribe(
        self, channel: str, consumer: str, policy: Policy, start: Start = "latest"
    ) -> Consumer:
        return await self._consumers.subscribe(channel, consumer, policy, start)

    async def consumers(self, channel: str | None = None) -> list[Consumer]:
        return await self._consumers.consumers(channel)

    async def consumer(self, channel: str, consumer: str) -> Consumer:
        return await self._consumers.consumer(channel, consumer)

    async def consumer_stats(self, channel: str, consumer: str) -> ConsumerStats:
        return await self._consumers.stats(channel, consumer)

    async def set_paused(self, channel: str, consumer: str, paused: bool) -> None:
        await self._consumers.set_paused(channel, consumer, paused)

    async def publish(
        self,
        channel: str,
        events: Sequence[Event],
        *,
        at: datetime | None = None,
        priority: int = 0,
        connection: Any = None,
    ) -> list[Receipt]:
        return await self._log.publish(channel, events, at, priority, connection)

    async def read(self, channel: str, after: str | None, limit: int) -> list[LogEntry]:
        return await self._log.read(channel, after, limit)

    async def claim(self, channel: str, consumer: str, limit: int, worker: str) -> list[Job]:
        return await self._leases.claim(channel, consumer, limit, worker)

    async def complete(self, jobs: Sequence[Job]) -> list[bool]:
        return await self._leases.complete(jobs)

    async def retry(self, retries: Sequence[Retry]) -> list[bool]:
        return await self._leases.retry(retries)

    async def bury(self, burials: Sequence[Burial]) -> list[bool]:
        return await self._leases.bury(burials)

    async def extend(self, jobs: Sequence[Job], by: timedelta) -> list[bool]:
        return await self._leases.extend(jobs, by)

    async def cancel(self, channel: str, source: str, event_id: str, consumer: str | None) -> int:
        return await self._operators.cancel(channel, source, event_id, consumer)

    async def requeue(self, channel: str, consumer: str, job_id: str) -> bool:
        return await self._operators.requeue(channel, consumer, job_id)

    async def stuck(self, limit: int) -> list[JobRecord]:
        return await self._operators.stuck(limit)

    async def find_jobs(self, channel: str, source: str, event_id: str) -> list[JobRecord]:
        return await self._operators.find_jobs(channel, source, event_id)

    async def due(self, limit: int) -> Reading:
        return await self._lifecycle.due(limit)

    async def apply(self, actions: Sequence[Action]) -> Applied:
        return await self._lifecycle.apply(actions)

    async def backfill(self, ref: int | str, limit: int) -> int:
        return await self._ingest.backfill(str(ref), limit)

    async def listen(self, channels: Sequence[str], wake: Callable[[str], None]) -> NatsListener:
        return NatsListener(self.url, channels, wake)
