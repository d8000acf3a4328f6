"""The lifecycle's two phases against this store."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from itertools import groupby
from typing import Any

from holdfast import failpoints
from holdfast.backends.postgres.arrays import NumberArray, TextArray
from holdfast.backends.postgres.leases import error_entry
from holdfast.backends.postgres.session import Session, gave_way
from holdfast.contracts import Applied, Reading
from holdfast.model.decide import Action, Due, DueKind, Move
from holdfast.model.errors import Unavailable


class Lifecycle:
    """Reads what is due; applies what still holds."""

    def __init__(self, session: Session) -> None:
        self._session = session

    async def due(self, limit: int) -> Reading:
        rows = await self._session.rows("due", limit=limit)
        backfills: list[int | str] = [ref for (ref,) in await self._session.rows("crowded", limit=limit)]
        load = await self._session.row("load")
        due = [
            Due(DueKind(kind), (consumer, seq), *(*counts, owner and tuple(owner)))
            for kind, consumer, seq, *counts, owner in rows
        ]
        return Reading(due, backfills, load[0] if load else 0, full=len(rows) >= limit)

    async def apply(self, actions: Sequence[Action]) -> Applied:
        applied = Applied()
        by_move = {move: [a for a in actions if a.move is move] for move in Move}
        if chosen := by_move[Move.PROMOTE]:
            applied.promoted = await self._moved(chosen, lambda some: self._count("promote", **_refs(some)))
        failpoints.hit("lifecycle.mid_apply")
        if chosen := by_move[Move.ABANDON]:
            applied.abandoned = await self._moved(
                chosen, lambda some: self._count("abandon", **_refs(some), **_fenced(some))
            )
        for bury, waiting in ((self._expire, True), (self._bury, False)):
            chosen = [a for a in by_move[Move.BURY] if (a.due.kind is DueKind.EXPIRY) is waiting]
            if chosen:
                applied.buried += await self._moved(chosen, bury)
        applied.refused = len(actions) - applied.total
        return applied

    async def backfill(self, ref: int | str, limit: int) -> int:
        return await self._count("take_up_special", consumer=ref)

    async def _moved(
        self, actions: Sequence[Action], move: Callable[[Sequence[Action]], Awaitable[int]]
    ) -> int:
        """Move all at once; or, where one consumer's jobs have to wait for somebody, those of the others."""
        try:
            return await move(actions)
        except Unavailable as error:
            if not gave_way(error):
                raise
        moved = 0
        for _, some in groupby(sorted(actions, key=_consumer), key=_consumer):
            try:
                moved += await move(list(some))
            except Unavailable as error:
                if not gave_way(error):
                    raise
        return moved

    async def _expire(self, actions: Sequence[Action]) -> int:
        return await self._bury(actions, waiting=True)

    async def _bury(self, actions: Sequence[Action], waiting: bool = False) -> int:
        return await self._count(
            "bury_due",
            **_refs(actions),
            **_fenced(actions),
            reasons=TextArray([action.reason for action in actions]),
            fingerprints=TextArray([a.failure.fingerprint if a.failure else "" for a in actions]),
            waiting=waiting,
        )

    async def _count(self, query: str, **parameters: Any) -> int:
        row = await self._session.row(query, **parameters)
        return int(row[0]) if row else 0


def _consumer(action: Action) -> int | str:
    return action.due.ref[0]


def _refs(actions: Sequence[Action]) -> dict[str, Any]:
    return {
        "consumers": [action.due.ref[0] for action in actions],
        "seqs": NumberArray([int(action.due.ref[1]) for action in actions]),
    }


def _fenced(actions: Sequence[Action]) -> dict[str, Any]:
    return {
        "tokens": NumberArray([action.due.token for action in actions]),
        "errors": TextArray([error_entry(action.failure, action.due.attempts) for action in actions]),
    }
