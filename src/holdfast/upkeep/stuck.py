"""Stuck work: leases whose worker vanished go back to their queue, or to the dead letters.

Every poll and every worker takes steps of the lifecycle too, so most of it has been moved before a sweep
looks. A retry is told of by the sweep that made it. What was given up is told of whoever moved it: the
sweeper finds it among the dead letters, and goes back to before its last report, so that a sweep that died
leaves none out.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta

from holdfast.contracts import Applied, Backend
from holdfast.model.deadletters import DeadFilter
from holdfast.model.decide import Move, Ref, when_due
from holdfast.model.job import JobRecord, Reason, State
from holdfast.upkeep.announcements import Alert, Retried
from holdfast.upkeep.health import Health
from holdfast.upkeep.lifecycle import Lifecycle

REPORTED = 1_000
FORESEEN = 10_000
"""Due jobs of each kind that a dry run looks at: a store should not be asked for more at once."""
_STEPS = 1_000
_LATE = timedelta(minutes=1)  # a burial is seen when it is committed, with the time at which it began


@dataclass(slots=True)
class Unstuck:
    """What was moved, and what is to be told about it, each with the id that makes a repeat a duplicate."""

    applied: Applied = field(default_factory=Applied)
    told: dict[str, Retried] = field(default_factory=dict)


async def would_unstick(backend: Backend) -> tuple[Applied, list[Ref]]:
    """What the lifecycle's steps would do now, and the jobs that they would give up."""
    actions = [when_due(due) for due in (await backend.due(FORESEEN)).due]
    moves = [action.move for action in actions]
    applied = Applied(moves.count(Move.PROMOTE), moves.count(Move.ABANDON), moves.count(Move.BURY))
    return applied, [action.due.ref for action in actions if action.move is Move.BURY]


async def unstick(backend: Backend, health: Health, namespace: str = "gbe") -> Unstuck:
    """Take the lifecycle's steps until nothing is due; the first `REPORTED` stuck jobs are told of."""
    done, stuck = Unstuck(), dict[tuple[str, ...], JobRecord]()
    lifecycle = Lifecycle(backend, health, namespace=namespace)
    for _ in range(_STEPS):
        reading = await lifecycle.read()
        if len(stuck) < REPORTED:
            # After the reading: a lease that ends in between must not be moved without being known.
            found = await backend.stuck(REPORTED)
            stuck |= {(record.channel, record.consumer, record.id): record for record in found}
        applied = await lifecycle.apply(reading)
        done.applied += applied
        if not applied.total:
            break
    for record in stuck.values():
        await _tell(backend, record, done.told)
    return done


async def _tell(backend: Backend, before: JobRecord, told: dict[str, Retried]) -> None:
    """What became of a job that was stuck: one that somebody else has claimed since is no news."""
    after = [
        record
        for record in await backend.find_jobs(before.channel, before.source, before.event_id)
        if record.consumer == before.consumer and record.id == before.id
    ]
    if not after or after[0].token != before.token:
        return
    [record] = after
    if record.state in (State.READY, State.SCHEDULED):
        policy = (await backend.consumer(record.channel, record.consumer)).policy
        told[f"retry:{_name(record)}"] = Retried(
            channel=record.channel,
            consumer=record.consumer,
            event_id=record.event_id,
            source=record.source,
            worker=before.worker,
            retry_count=record.abandonments + (0 if policy.max_runs is None else record.attempts),
            max_retries=policy.max_abandonments if policy.max_runs is None else policy.max_runs - 1,
        )


async def given_up(backend: Backend, since: datetime | None) -> dict[str, Alert]:
    """The latest `REPORTED` jobs whose workers vanished too often, from a while before `since` on, by id."""
    wanted = DeadFilter(reason=Reason.CRASH_LOOP, since=None if since is None else since - _LATE)
    found, after = dict[str, Alert](), None
    while len(found) < REPORTED:
        page = await backend.dead_letters(wanted, after, REPORTED - len(found))
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
