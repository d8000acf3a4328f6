"""The lifecycle's two phases against this store."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from holdfast import failpoints
from holdfast.backends.nats.state.backlogs import Backlogs
from holdfast.backends.nats.state.job_records import StoredJob
from holdfast.backends.nats.state.overdue import Overdue
from holdfast.backends.nats.state.store import NatsStore
from holdfast.backends.nats.state.take_up import TakeUp
from holdfast.backends.nats.state.transitions import Transitions, TransitionStep, buried
from holdfast.contracts import Applied, Reading
from holdfast.model.decide import Action, Due, DueKind, Move
from holdfast.model.job import Failure, Reason
from holdfast.model.states import State

_WAITING = (State.READY, State.SCHEDULED)
_ORDER = (Move.PROMOTE, Move.ABANDON, Move.BURY)


class Lifecycle:
    """Reads what is due; applies what still holds."""

    def __init__(
        self,
        store: NatsStore,
        take_up: TakeUp,
        overdue: Overdue,
        backlogs: Backlogs,
        transitions: Transitions,
    ) -> None:
        self._store, self._take_up, self._overdue = store, take_up, overdue
        self._backlogs, self._transitions = backlogs, transitions

    async def due(self, limit: int) -> Reading:
        """What only time moves becomes jobs of their own first: that follows from the log."""
        now = await self._store.fresh()
        await self._take_up.advance(now)
        mirror = self._store.mirror
        found = [
            (kind, heap.peek(limit, _wanted(kind, now), now)) for kind, heap in mirror.queues.due.items()
        ]
        found.append((DueKind.LEASE, await self._overdue.jobs(limit, now)))
        await self._overdue.tidy(now)
        members = self._store.registry.members
        due = [
            self._due(kind, record, now)
            for kind, records in found
            for record in records
            if record.ref in members
        ]
        full = any(len(records) >= limit for _, records in found)
        return Reading(due, [], await self._backlogs.load(), full)

    def _due(self, kind: DueKind, record: StoredJob, now: int) -> Due:
        member = self._store.registry.members[record.ref]
        policy = member.policy
        return Due(
            kind,
            (record.ref, record.seq),
            record.token,
            record.attempts,
            record.abandonments,
            record.expires is not None and record.expires <= now,
            policy.max_attempts,
            policy.max_abandonments,
            record.worker,
            policy.max_runs,
            (member.channel, member.name) if policy.on_dead == "discard" else None,
        )

    async def apply(self, actions: Sequence[Action]) -> Applied:
        applied, now = Applied(), await self._store.fresh()
        for move in _ORDER:
            chosen = [action for action in actions if action.move is move]
            changed = sum(await self._transitions.apply([self._step(action) for action in chosen], now))
            match move:
                case Move.PROMOTE:
                    applied.promoted = changed
                    failpoints.hit("lifecycle.mid_apply")
                case Move.ABANDON:
                    applied.abandoned = changed
                case Move.BURY:
                    applied.buried = changed
            if changed and move is not Move.BURY:
                members = self._store.registry.members
                refs = {str(action.due.ref[0]) for action in chosen} & members.keys()
                await self._store.wake({members[ref].channel for ref in refs})
        applied.refused = len(actions) - applied.total
        return applied

    async def backfill(self, ref: int | str, limit: int) -> int:
        return 0  # a start in the past is a frontier further back

    def _step(self, action: Action) -> TransitionStep:
        due, (ref, seq) = action.due, action.due.ref
        member = self._store.registry.members.get(str(ref))
        change: Callable[[StoredJob, int], StoredJob]
        match action.move:
            case Move.PROMOTE:
                change = _promoted
            case Move.ABANDON:
                change = _abandoned(action.failure)
            case Move.BURY:
                reason, failure = action.reason or Reason.TERMINAL, action.failure or Failure("")
                change = buried(member, reason, failure, overdue=due.kind is DueKind.LEASE)
        return TransitionStep(str(ref), int(seq), _still(due), change)


def _wanted(kind: DueKind, now: int) -> Callable[[StoredJob], bool]:
    match kind:
        case DueKind.LEASE:
            return lambda record: record.state is State.LEASED
        case DueKind.EXPIRY:
            return lambda record: record.state in _WAITING
        case DueKind.SCHEDULE:
            return lambda record: (
                record.state is State.SCHEDULED and (record.expires is None or record.expires > now)
            )


def _still(due: Due) -> Callable[[StoredJob, int], bool]:
    """Return whether what phase one has read still holds."""

    def accepts(record: StoredJob, now: int) -> bool:
        if record.token != due.token:
            return False
        match due.kind:
            case DueKind.LEASE:
                return record.state is State.LEASED and (record.lease or 0) <= now
            case DueKind.EXPIRY:
                return record.state in _WAITING and record.expires is not None and record.expires <= now
            case DueKind.SCHEDULE:
                return record.state is State.SCHEDULED and record.due <= now

    return accepts


def _promoted(record: StoredJob, now: int) -> StoredJob:
    return record.waiting(State.READY, record.due)


def _abandoned(failure: Failure | None) -> Callable[[StoredJob, int], StoredJob]:
    def change(record: StoredJob, now: int) -> StoredJob:
        return record.waiting(
            State.READY,
            now,
            attempts=record.attempts - 1,
            abandonments=record.abandonments + 1,
            errors=record.failed(failure, now),
        )

    return change
