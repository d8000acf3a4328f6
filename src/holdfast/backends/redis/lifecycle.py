"""Lifecycle: what happens to jobs by time alone, in two phases."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from holdfast import failpoints
from holdfast.backends.redis.leases import MOST_ROWS, error_entry, run_rows
from holdfast.backends.redis.link import Argument
from holdfast.backends.redis.session import Session
from holdfast.contracts import Applied, Reading
from holdfast.model.decide import Action, Due, DueKind, Move

_CONSUMER = b"#"


class Lifecycle:
    """Deadlines are scores of sorted sets over all consumers."""

    def __init__(self, session: Session) -> None:
        self._session = session

    async def due(self, limit: int) -> Reading:
        """Special entries that nobody has taken up have no deadline in any set: they are taken up first."""
        load, care, *rows = await self._session.run("lifecycle/due", limit)
        if channels := [name for name in care if not name.startswith(_CONSUMER)]:
            for channel in channels:
                await self._session.run("lifecycle/backfill", channel, limit)
            load, care, *rows = await self._session.run("lifecycle/due", limit)
        due = [_due(*row) for row in rows]
        return Reading(due, sorted(name.decode() for name in care), load, full=len(rows) >= limit)

    async def apply(self, actions: Sequence[Action]) -> Applied:
        """One script for each move; each checks again."""
        applied = Applied()
        by_move = {move: [action for action in actions if action.move is move] for move in Move}
        for part in _parts([action.due.ref for action in by_move[Move.PROMOTE]]):
            applied.promoted += await self._session.run("lifecycle/promote", *part)
        failpoints.hit("lifecycle.mid_apply")
        for part in _parts([_fenced(action) for action in by_move[Move.ABANDON]]):
            applied.abandoned += await self._session.run("lifecycle/abandon", *part)
        for mode, waiting in (("waiting", True), ("overdue", False)):
            chosen = [a for a in by_move[Move.BURY] if (a.due.kind is DueKind.EXPIRY) is waiting]
            burials = [_burial(action) for action in chosen]
            applied.buried += sum(await run_rows(self._session, "leases/bury", burials, mode))
        applied.refused = len(actions) - applied.total
        return applied

    async def backfill(self, ref: int | str, limit: int) -> int:
        return int(await self._session.run("lifecycle/backfill", ref, limit))


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


def _parts(rows: Sequence[tuple[Argument, ...]]) -> Iterator[list[Argument]]:
    """As many rows as one script may take at a time, flat."""
    for start in range(0, len(rows), MOST_ROWS):
        yield [value for row in rows[start : start + MOST_ROWS] for value in row]


def _fenced(action: Action) -> tuple[Argument, ...]:
    return (*action.due.ref, action.due.token, error_entry(action.failure, action.due.attempts))


def _burial(action: Action) -> tuple[Argument, ...]:
    fingerprint = action.failure.fingerprint if action.failure else ""
    reason = action.reason.value if action.reason else ""
    error = error_entry(action.failure, action.due.attempts)
    return (*action.due.ref, action.due.token, reason, error, fingerprint)
