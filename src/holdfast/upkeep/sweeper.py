"""The sweeper, one per deployment: stuck work, retention, dead consumers, under a lock that fences it.

Stuck work is leases whose worker vanished: they go back to their queue, or to the dead letters. Every poll
and every worker takes steps of the lifecycle too, so most of it has been moved before a sweep looks. A retry
is announced by the sweep that made it. What was given up is announced whoever moved it: the sweeper finds it
among the dead letters, and goes back to before its last report, so that a sweep that died leaves none out.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from holdfast import failpoints
from holdfast.contracts import Applied, Backend
from holdfast.model.deadletters import DeadFilter
from holdfast.model.decide import Move, Ref, when_due
from holdfast.model.errors import Overloaded
from holdfast.model.job import JobRecord, Reason
from holdfast.model.states import State
from holdfast.model.upkeep import Group, Lock
from holdfast.upkeep.announcements import (
    Alert,
    Announcement,
    DeadGroup,
    Retried,
    Swept,
    announce,
    lag_alert,
    raise_alert,
)
from holdfast.upkeep.lifecycle import Health, LifecycleSteps
from holdfast.upkeep.lock import holding
from holdfast.upkeep.retention import COUNTED, Kept, RetentionSweep
from holdfast.upkeep.rules import Rules
from holdfast.upkeep.state import SWEEPER, get_report, put_report

_STEP = 5_000
_PAGE = 1_000
_RECLAIM = 1_000
REPORTED = 1_000
FORESEEN = 10_000
"""Due jobs of each kind that a dry run looks at: a store should not be asked for more at once."""
_STEPS = 1_000
_LATE = timedelta(minutes=1)  # a burial is seen when it is committed, with the time at which it began
Chore = Callable[[], Awaitable[int]]
"""Something else to see to in each sweep; returns how much it did. Its forecast: how much it would do."""


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

        `LockLost` ends it where it is: what it did so far was done under the lock, and the new holder
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
        """Return what a sweep would do now, by the same decisions. Takes no lock and changes nothing."""
        started, begun = await self._backend.now(), time.monotonic()
        work = _Work()
        work.applied, given_up = await _would_unstick(self._backend)
        work.kept = await RetentionSweep(self._backend, self._rules).run_once(None, given_up)
        work.groups = await self._dead_groups(None)
        await self._forget(None, work)
        for name, forecast in self._forecasts.items():
            work.chores[name] = await forecast()
        work.purged = await self._would_purge()
        return _report(work, started, time.monotonic() - begun, 0, dry_run=True)

    async def _sweep(self, lock: Lock) -> _Work:
        backend, work = self._backend, _Work()
        news: dict[str, Announcement] = {}
        work.applied, retried = await _unstick(backend, self._health, self._rules.namespace)
        news |= retried
        news |= await _given_up(backend, await self._last_sweep())
        # A store that is full takes news only after it was trimmed.
        with suppress(Overloaded):
            await self._announce(news)
            news = {}
        failpoints.hit("sweeper.after_stuck")
        work.kept = await RetentionSweep(backend, self._rules).run_once(lock)
        work.groups = await self._dead_groups(lock)
        await self._forget(lock, work)
        for name, chore in self._chores.items():  # they announce what they did, too
            work.chores[name] = await chore()
        await self._purge(lock, work)
        await self._announce(news)
        work.alerts = work.kept.alerts + _alerts(work.groups) + await self._lagging()
        return work

    async def _announce(self, news: Mapping[str, Announcement]) -> None:
        for event_id, announcement in news.items():
            await announce(self._backend, self._rules.namespace, announcement, event_id)

    async def _last_sweep(self) -> datetime | None:
        """When the last one that came to its end began."""
        last = await get_report(self._backend, self._rules.namespace, SWEEPER)
        return None if last is None else datetime.fromisoformat(last[1]["started_at"])

    async def _forget(self, lock: Lock | None, work: _Work) -> None:
        now = await self._backend.now()
        keys, jobs = now - self._rules.dedupe_window, now - self._rules.history
        while True:
            step = await self._backend.retention.forget(keys, jobs, _STEP, lock)
            work.keys += step.keys
            work.jobs += step.jobs
            if not step.more:
                return

    async def _purge(self, lock: Lock, work: _Work) -> None:
        if self._rules.dead_letters is None:
            return
        before = await self._backend.now() - self._rules.dead_letters
        for channel in await self._backend.channels.names():
            while step := await self._backend.retention.purge_dead(channel, before, _STEP, lock):
                for consumer, count in step.items():
                    name = f"{channel}/{consumer}"
                    work.purged[name] = work.purged.get(name, 0) + count

    async def _would_purge(self) -> dict[str, int]:
        found, after = Counter[str](), None
        if self._rules.dead_letters is None:
            return found
        wanted = DeadFilter(until=await self._backend.now() - self._rules.dead_letters)
        while True:
            page = await self._backend.deadletters.page(wanted, after, _PAGE)
            found.update(f"{each.record.channel}/{each.record.consumer}" for each in page.letters)
            after = page.after
            if after is None:
                return found

    async def _dead_groups(self, lock: Lock | None) -> list[DeadGroup]:
        """Return foreign groups that need attention, and what was done; without a lock, what would be."""
        found: list[DeadGroup] = []
        if not self._backend.capabilities.foreign_groups:
            return found
        for group in await self._backend.groups.all(self._rules.dead_consumers.alive):
            if not group.stale:  # nothing is lost with it; and a server may not see who waits for news
                continue
            reclaimed = removed = 0
            if group.members:
                reclaimed = group.stale if lock is None else await self._reclaim(group, lock)
            elif self._is_removable(group):
                removed = await self._backend.groups.remove(group, self._rules.dead_consumers.after, lock)
            found.append(
                DeadGroup(
                    channel=group.channel,
                    group=group.name,
                    pending=group.pending,
                    reclaimed=reclaimed,
                    removed=bool(removed),
                )
            )
        return found

    async def _reclaim(self, group: Group, lock: Lock) -> int:
        reclaimed = 0
        while step := await self._backend.groups.reclaim(
            group, self._rules.dead_consumers.alive, _RECLAIM, lock
        ):
            reclaimed += step
        return reclaimed

    def _is_removable(self, group: Group) -> bool:
        """Dead for long enough, and nobody has said that it guards the channel."""
        rule = self._rules.dead_consumers
        gone = group.idle is not None and group.idle >= rule.after
        return rule.action == "remove" and gone and group.name not in self._rules.guards(group.channel)

    async def _lagging(self) -> list[Alert]:
        """Stream consumers that are further behind than they should be."""
        rules, now, found = self._rules, await self._backend.now(), []
        for cursor in await self._backend.cursors.all():
            lag = await self._backend.log.behind(cursor.channel, cursor.position, COUNTED)
            found.append(lag_alert(cursor.channel, cursor.name, lag, now, rules.lag_events, rules.lag_age))
        return [alert for alert in found if alert is not None]


async def _would_unstick(backend: Backend) -> tuple[Applied, list[Ref]]:
    """Return what the lifecycle's steps would do now, and the jobs that they would give up."""
    actions = [when_due(due) for due in (await backend.lifecycle.due(FORESEEN)).due]
    moves = [action.move for action in actions]
    applied = Applied(moves.count(Move.PROMOTE), moves.count(Move.ABANDON), moves.count(Move.BURY))
    return applied, [action.due.ref for action in actions if action.move is Move.BURY]


async def _unstick(
    backend: Backend, health: Health, namespace: str = "gbe"
) -> tuple[Applied, dict[str, Retried]]:
    """Take the lifecycle's steps until nothing is due. Returns what was moved, and what to announce of the
    first `REPORTED` stuck jobs, by the id that makes a repeat a duplicate."""
    moved, stuck = Applied(), dict[tuple[str, ...], JobRecord]()
    lifecycle = LifecycleSteps(backend, health, namespace=namespace)
    for _ in range(_STEPS):
        reading = await lifecycle.read()
        if len(stuck) < REPORTED:
            # After the reading: a lease that ends in between must not be moved without being known.
            found = await backend.leases.stuck(REPORTED)
            stuck |= {(record.channel, record.consumer, record.id): record for record in found}
        applied = await lifecycle.apply(reading)
        moved += applied
        if not applied.total:
            break
    retried: dict[str, Retried] = {}
    for record in stuck.values():
        retried |= await _retried(backend, record)
    return moved, retried


async def _retried(backend: Backend, before: JobRecord) -> dict[str, Retried]:
    """What to announce of a job that was stuck: nothing of one that somebody else has claimed since."""
    after = [
        record
        for record in await backend.leases.find_jobs(before.channel, before.source, before.event_id)
        if record.consumer == before.consumer and record.id == before.id
    ]
    if not after or after[0].token != before.token or after[0].state not in (State.READY, State.SCHEDULED):
        return {}
    [record] = after
    policy = (await backend.channels.consumer(record.channel, record.consumer)).policy
    retried = Retried(
        channel=record.channel,
        consumer=record.consumer,
        event_id=record.event_id,
        source=record.source,
        worker=before.worker,
        retry_count=record.abandonments + (0 if policy.max_runs is None else record.attempts),
        max_retries=policy.max_abandonments if policy.max_runs is None else policy.max_runs - 1,
    )
    return {f"retry:{_name(record)}": retried}


async def _given_up(backend: Backend, since: datetime | None) -> dict[str, Alert]:
    """Return the latest `REPORTED` jobs whose workers vanished too often, from shortly before `since`."""
    wanted = DeadFilter(reason=Reason.CRASH_LOOP, since=None if since is None else since - _LATE)
    found, after = dict[str, Alert](), None
    while len(found) < REPORTED:
        page = await backend.deadletters.page(wanted, after, REPORTED - len(found))
        found |= {f"exhausted:{_name(each.record)}": _exhausted(each.record) for each in page.letters}
        after = page.after
        if after is None:
            break
    return found


def _exhausted(record: JobRecord) -> Alert:
    return Alert(
        kind="exhausted",
        message=f"event {record.event_id} was given up for {record.consumer}: {record.reason}",
        channel=record.channel,
        consumer=record.consumer,
        event_id=record.event_id,
        count=record.attempts + record.abandonments,
    )


def _name(record: JobRecord) -> str:
    return f"{record.channel}/{record.consumer}/{record.id}/{record.token}"


def _alerts(groups: list[DeadGroup]) -> list[Alert]:
    return [
        Alert(
            kind="dead_consumer",
            message=f"group {each.group} of {each.channel} has no living member and {each.pending} pending "
            f"entries: {'it was removed' if each.removed else 'start a member, or remove the group'}",
            channel=each.channel,
            consumer=each.group,
            count=each.pending,
        )
        for each in groups
        if not each.reclaimed
    ]


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
