"""Retention: trimming the log, its size, full channels, and forgetting what ended."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from holdfast.backends.postgres.arrays import NumberArray, TextArray
from holdfast.backends.postgres.horizon import horizon
from holdfast.backends.postgres.locks import fencing
from holdfast.backends.postgres.positions import position, up_to
from holdfast.backends.postgres.session import Session
from holdfast.model.decide import Ref
from holdfast.model.errors import NotFound
from holdfast.model.upkeep import Forgotten, Hold, Lock, Size, Trim


class Retention:
    """Removes what nobody needs any more, each step under the sweeper's lock."""

    def __init__(self, session: Session) -> None:
        self._session = session

    async def trim(
        self,
        channel: str,
        before: datetime,
        limit: int,
        lock: Lock | None,
        *,
        ignore: Sequence[str] = (),
        groups: Sequence[str] = (),
        ended: Sequence[Ref] = (),
    ) -> Trim:
        names = {"ignore": TextArray(ignore), "groups": TextArray(groups)}
        end = up_to(await horizon(self._session, channel))
        if lock is None:
            owners, seqs = (NumberArray(int(ref[at]) for ref in ended) for at in (0, 1))
            row = await self._session.row(
                "would_trim", channel=channel, before=before, owners=owners, ended=seqs, **names, **end
            )
            assert row is not None  # noqa: S101 - a function with OUT parameters always returns a row
            return _trim(row[0], False, *row[1:])
        row = await self._session.row(
            "trim", channel=channel, before=before, limit=limit, **fencing(lock), **names, **end
        )
        assert row is not None  # noqa: S101 - a function with OUT parameters always returns a row
        return _trim(*row)

    async def size(self, channel: str) -> Size:
        row = await self._session.row("size", channel=channel)
        return Size(*row) if row else Size(0, 0)

    async def set_full(self, channel: str, full: bool) -> None:
        if await self._session.row("set_full", channel=channel, full=full) != (True,):
            raise NotFound(f"there is no channel {channel!r}; 'holdfast channels list' shows all")

    async def forget(self, keys: datetime, jobs: datetime, limit: int, lock: Lock | None) -> Forgotten:
        if lock is None:
            row = await self._session.row("would_forget", keys=keys, jobs=jobs, limit=limit)
            assert row is not None  # noqa: S101 - a function with OUT parameters always returns a row
            return Forgotten(row[0], row[1], more=False)
        row = await self._session.row("forget", keys=keys, jobs=jobs, limit=limit, **fencing(lock))
        assert row is not None  # noqa: S101 - a function with OUT parameters always returns a row
        return Forgotten(*row)

    async def purge_dead(self, channel: str, before: datetime, limit: int, lock: Lock) -> dict[str, int]:
        rows = await self._session.rows(
            "purge_dead", channel=channel, before=before, limit=limit, **fencing(lock)
        )
        return dict(rows)


def _trim(removed: int, more: bool, holder: str | None, *needed: Any) -> Trim:
    return Trim(removed, more, Hold(holder, position(*needed)) if holder is not None else None)
