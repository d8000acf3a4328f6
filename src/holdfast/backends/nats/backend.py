"""NATS JetStream as a Holdfast backend: one store, and one object per noun."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta

from holdfast.backends.nats.channels import Channels
from holdfast.backends.nats.cursors import Cursors
from holdfast.backends.nats.deadletters import DeadLetters
from holdfast.backends.nats.groups import Groups
from holdfast.backends.nats.leases import Leases
from holdfast.backends.nats.lifecycle import Lifecycle
from holdfast.backends.nats.locks import Locks
from holdfast.backends.nats.log import Log
from holdfast.backends.nats.records import Records
from holdfast.backends.nats.retention import Retention
from holdfast.backends.nats.state.backlogs import Backlogs
from holdfast.backends.nats.state.claims import Claims
from holdfast.backends.nats.state.entries import Entries
from holdfast.backends.nats.state.jobs import Jobs
from holdfast.backends.nats.state.lease_records import LeaseRecords
from holdfast.backends.nats.state.overdue import Overdue
from holdfast.backends.nats.state.publish_outcome import IdempotencyKeys, PublishOutcomes
from holdfast.backends.nats.state.publisher import BatchPublisher
from holdfast.backends.nats.state.store import NatsStore
from holdfast.backends.nats.state.take_up import TakeUp
from holdfast.backends.nats.state.transitions import Transitions
from holdfast.backends.nats.wire import checks
from holdfast.backends.nats.wire.codec import from_micros, to_micros
from holdfast.backends.nats.wire.listener import NatsListener
from holdfast.contracts import Capabilities, Finding
from holdfast.model.duration import parse_duration
from holdfast.model.errors import Duration


class NatsBackend:
    """One JetStream stream.

    One connection carries everything, since a batch must stay in order; `connections` is there because every
    backend has it. `history` is how long a job is remembered after it was done, cancelled or discarded; dead
    letters and idempotency keys stay.
    """

    capabilities = Capabilities(foreign_groups=True)

    def __init__(self, url: str, *, connections: int = 1, history: Duration = "7d") -> None:
        self.url = url
        self._history = history
        seconds = max(int(parse_duration(history, what="history").total_seconds()), 1)
        store = self._store = NatsStore(url, seconds)
        outcomes = PublishOutcomes(store)
        entries = Entries(store, outcomes)
        keys = IdempotencyKeys(store, outcomes)
        leases = LeaseRecords(store)
        take_up = TakeUp(store, entries, keys, leases)
        jobs = Jobs(store, entries, leases, take_up)
        overdue = Overdue(store, leases, jobs)
        backlogs = Backlogs(store, entries, outcomes, leases)
        transitions = Transitions(store, entries, leases, jobs)
        claims = Claims(store, entries, take_up, leases, transitions)
        self.channels = Channels(store, entries, outcomes, backlogs)
        self.log = Log(store, entries, outcomes, BatchPublisher(store, entries, outcomes, keys, backlogs))
        self.leases = Leases(store, entries, keys, take_up, leases, jobs, transitions, overdue, claims)
        self.locks = Locks(store)
        self.deadletters = DeadLetters(store, entries, leases, transitions, self.locks)
        self.lifecycle = Lifecycle(store, take_up, overdue, backlogs, transitions)
        self.cursors = Cursors(store, self.log)
        self.groups = Groups(store, self.locks)
        self.retention = Retention(
            store, entries, outcomes, self.cursors, self.groups, self.locks, leases, take_up
        )
        self.records = Records(store)

    async def open(self) -> list[str]:
        await self._store.open()
        return []

    async def close(self) -> None:
        await self._store.close()

    def fork(self) -> NatsBackend:
        return NatsBackend(self.url, history=self._history)

    async def now(self) -> datetime:
        return from_micros(await self._store.clock())

    async def epoch(self) -> int:
        await self._store.clock()  # recognises the server
        return self._store.registry.epochs[-1][1]

    async def advance(self, by: timedelta) -> None:
        await self._store.look()
        last = int((await self._store.info())["state"]["last_seq"])
        await self._store.change_registry(lambda known: known.with_offset(to_micros(by), last))

    async def check(self) -> list[Finding]:
        return await checks.check(self._store.connection)

    async def listen(
        self,
        channels: Sequence[str],
        wake: Callable[[str], None],
        failed: Callable[[BaseException], None] = lambda _: None,
        cancelled: Callable[[str, str, str], None] = lambda *_: None,
    ) -> NatsListener:
        return NatsListener(self.url, channels, wake, failed, cancelled)
