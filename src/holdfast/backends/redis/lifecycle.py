"""The lifecycle's two phases against this store."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from holdfast import failpoints
from holdfast.backends.redis.leases import error_entry, parts, settle
from holdfast.backends.redis.link import Argument
from holdfast.backends.redis.session import Session
from holdfast.contracts import Applied, Reading
from holdfast.model.decide import Action, Due, DueKind, Move


class Lifecycle:
    """Reads what is due; applies what still holds."""

    def __init__(self, session: Session) -> None:
        self._session = session

    async def due(self, limit: int) -> Reading:
        """Phase one: nothing is written."""
        load, behind, *rows = await self._session.run("due", limit)
        return Reading(
            [_due(*row) for row in rows], sorted(int(ref) for ref in behind), load, full=len(rows) >= limit
        )

    async def apply(self, actions: Sequence[Action]) -> Applied:
        """Phase two: one script per move, each checking again."""
        applied = Applied()
        by_move = {move: [action for action in actions if action.move is move] for move in Move}
        for part in parts([_ref(action) for action in by_move[Move.PROMOTE]]):
            applied.promoted += await self._session.run("promote", *_flat(part))
        failpoints.hit("lifecycle.mid_apply")
        for part in parts([_fenced(action) for action in by_move[Move.ABANDON]]):
            applied.abandoned += await self._session.run("abandon", *_flat(part))
        for mode, waiting in (("waiting", True), ("overdue", False)):
            chosen = [a for a in by_move[Move.BURY] if (a.due.kind is DueKind.EXPIRY) is waiting]
            burials = [_burial(action) for action in chosen]
            applied.buried += sum(await settle(self._session, "bury", burials, mode))
        applied.refused = len(actions) - applied.total
        return applied

    async def backfill(self, ref: int | str, limit: int) -> int:
        """One page of older entries for a consumer that is behind the log."""
        return int(await self._session.run("backfill", ref, limit))


def _due(
    kind: bytes,
    ref: int,
    entry: bytes,
    token: int,
    attempts: int,
    abandonments: int,
    expired: int,
    *rest: Any,
) -> Due:
    most_attempts, most_abandonments, worker, most_runs, owner = rest
    channel, _, consumer = owner.decode().partition("/")
    return Due(
        DueKind(kind.decode()),
        (ref, entry.decode()),
        token,
        attempts,
        abandonments,
        bool(expired),
        most_attempts,
        most_abandonments,
        worker.decode() or None,
        most_runs or None,
        (channel, consumer) if owner else None,
    )


def _flat(rows: Sequence[tuple[Argument, ...]]) -> list[Argument]:
    return [value for row in rows for value in row]


def _ref(action: Action) -> tuple[Argument, ...]:
    return action.due.ref


def _fenced(action: Action) -> tuple[Argument, ...]:
    return (*action.due.ref, action.due.token, error_entry(action.failure, action.due.attempts))


def _burial(action: Action) -> tuple[Argument, ...]:
    fingerprint = action.failure.fingerprint if action.failure else ""
    reason = action.reason.value if action.reason else ""
    error = error_entry(action.failure, action.due.attempts)
    return (*action.due.ref, action.due.token, reason, error, fingerprint)
