"""The sweeper, one per deployment: stuck work, retention, dead consumers, under a lock that fences it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime

from holdfast import failpoints
from holdfast.contracts import Applied, Backend
from holdfast.model.deadletters import DeadFilter
from holdfast.model.errors import Overloaded
from holdfast.model.upkeep import Lock
from holdfast.upkeep import deadconsumers, stuck
from holdfast.upkeep.alerts import lag_alert, raise_alert
from holdfast.upkeep.announcements import Alert, Announcement, DeadGroup, Swept, announce
from holdfast.upkeep.deadconsumers import DeadConsumers
from holdfast.upkeep.health import Health
from holdfast.upkeep.holding import holding
from holdfast.upkeep.reports import SWEEPER, get_report, put_report
from holdfast.upkeep.retention import COUNTED, Kept, Retention
from holdfast.upkeep.rules import Rules

_STEP = 5_000
_PAGE = 1_000
Chore = Callable[[], Awaitable[int]]
"""Something else to see to in each sweep; answers how much it did. Its forecast: how much it would do."""


@dataclass(slots=True)
class _Work:
    """What a sweep has done so far, field by field as the report has it."""

    kept: Kept = field(default_factory=Kept)
    applied: Applied = field(default_factory=Applied)
    keys: int = 0
    jobs: int = 0
    purged: dict[str, int] = field(default_factory=dict)
    groups: list[DeadGroup] = field(default_factory=list)
    chores: dict[str, int] = field(default_factory=dict)
    alerts: list[Alert] = field(default_factory=list)


class Sweeper:
    """Sweeps one store."""

    def __init__(
        self,
        backend: Backend,
        rules: Rules,
        owner: str,
        *,
        health: Health | None = None,
        chores: Mapping[str, Chore] | None = None,
        forecasts: Mapping[str, Chore] | None = None,
    ) -> None:
        self._backend, self._rules, self._owner = backend, rules, owner
        self._health = health or Health()
        self._chores, self._forecasts = chores or {}, forecasts or {}
        self.last: Swept | None = None

    async def run_once(self) -> Swept | None:
        """One sweep; its report is published. None where another sweeper holds the lock.

        `LockLost` ends it where it stands: what it did so far was done under the lock, and the new holder
        goes on from there.
        """
        async with holding(self._backend, self._rules.lock_name, self._owner, self._rules.lock_ttl) as lock:
            if lock is None:
                return None
            failpoints.hit("sweeper.after_lock")
            started, begun = await self._backend.now(), time.monotonic()
            work = await self._sweep(lock)
            self.last = _report(work, started, time.monotonic() - begun, lock.token, dry_run=False)
            for alert in work.alerts:
                await raise_alert(self._backend, self._rules.namespace, alert)
            failpoints.hit("sweeper.before_report")
            report = self.last.model_dump(mode="json")
            await put_report(self._backend, self._rules.namespace, SWEEPER, report, lock.token)
            await announce(self._backend, self._rules.namespace, self.last)
            return self.last

    async def dry_run(self) -> Swept:
        """What a sweep would do now, by the same judgements. Takes no lock and changes nothing."""
        started, begun = await self._backend.now(), time.monotonic()
        work = _Work()
        work.applied, given_up = await stuck.would_unstick(self._backend)
        work.kept = await Retention(self._backend, self._rules).run_once(None, given_up)
        work.groups = await DeadConsumers(self._backend, self._rules).run_once(None)
        await self._forget(None, work)
        for name, forecast in self._forecasts.items():
            work.chores[name] = await forecast()
        work.purged = await self._would_purge()
        return _report(work, started, time.monotonic() - begun, 0, dry_run=True)

    async def _sweep(self, lock: Lock) -> _Work:
        backend, work = self._backend, _Work()
        unstuck = await stuck.unstick(backend, self._health, self._rules.namespace)
        work.applied = unstuck.applied
        told = unstuck.told | await stuck.given_up(backend, await self._last_sweep())
        # A store that is full takes news only after it was trimmed.
        with suppress(Overloaded):
            await self._tell(told)
            told = {}
        failpoints.hit("sweeper.after_stuck")
        work.kept = await Retention(backend, self._rules).run_once(lock)
        work.groups = await DeadConsumers(backend, self._rules).run_once(lock)
        await self._forget(lock, work)
        for name, chore in self._chores.items():  # they tell of what they did, too
            work.chores[name] = await chore()
        await self._purge(lock, work)
        await self._tell(told)
        work.alerts = work.kept.alerts + deadconsumers.alerts(work.groups) + await self._lagging()
        return work

    async def _tell(self, told: Mapping[str, Announcement]) -> None:
        for event_id, announcement in told.items():
            await announce(self._backend, self._rules.namespace, announcement, event_id)

    async def _last_sweep(self) -> datetime | None:
        """When the last one that came to its end began."""
        last = await get_report(self._backend, self._rules.namespace, SWEEPER)
        return None if last is None else datetime.fromisoformat(last[1]["started_at"])

    async def _forget(self, lock: Lock | None, work: _Work) -> None:
        now = await self._backend.now()
        keys, jobs = now - self._rules.dedupe_window, now - self._rules.history
        while True:
            step = await self._backend.forget(keys, jobs, _STEP, lock)
            work.keys += step.keys
            work.jobs += step.jobs
            if not step.more:
                return

    async def _purge(self, lock: Lock, work: _Work) -> None:
        if self._rules.dead_letters is None:
            return
        before = await self._backend.now() - self._rules.dead_letters
        for channel in await self._backend.channels():
            while step := await self._backend.purge_dead(channel, before, _STEP, lock):
                for consumer, count in step.items():
                    name = f"{channel}/{consumer}"
                    work.purged[name] = work.purged.get(name, 0) + count

    async def _would_purge(self) -> dict[str, int]:
        found, after = Counter[str](), None
        if self._rules.dead_letters is None:
            return found
        wanted = DeadFilter(until=await self._backend.now() - self._rules.dead_letters)
        while True:
            page = await self._backend.dead_letters(wanted, after, _PAGE)
            found.update(f"{each.record.channel}/{each.record.consumer}" for each in page.letters)
            after = page.after
            if after is None:
                return found

    async def _lagging(self) -> list[Alert]:
        """Stream consumers that are further behind than they should be."""
        rules, now, found = self._rules, await self._backend.now(), []
        for cursor in await self._backend.cursors():
            lag = await self._backend.behind(cursor.channel, cursor.position, COUNTED)
            found.append(lag_alert(cursor.channel, cursor.name, lag, now, rules.lag_events, rules.lag_age))
        return [alert for alert in found if alert is not None]


def _report(work: _Work, started: datetime, seconds: float, token: int, *, dry_run: bool) -> Swept:
    return Swept(
        started_at=started,
        duration_seconds=seconds,
        token=token,
        dry_run=dry_run,
        retried=work.applied.abandoned,
        buried=work.applied.buried,
        promoted=work.applied.promoted,
        trimmed=work.kept.trimmed,
        held=work.kept.held,
        dropped=work.kept.dropped,
        full=work.kept.full,
        forgotten_keys=work.keys,
        forgotten_jobs=work.jobs,
        purged=work.purged,
        groups=work.groups,
        chores=work.chores,
    )
