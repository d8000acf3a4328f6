"""Acknowledged publishes: after a failover, a process reports those of its own that the new server lacks."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from itertools import groupby

from holdfast.backends.postgres.arrays import NumberArray, TextArray
from holdfast.backends.postgres.positions import numbers
from holdfast.backends.postgres.session import Session
from holdfast.contracts import STORE_ERRORS, raise_if_cancelled
from holdfast.model.event import Receipt
from holdfast.model.position import format_position

log = logging.getLogger(__name__)

_KEPT = 10_000
"""So many events are remembered, and the last batch whole: more than a standby should ever be behind."""


class Acknowledged:
    """Remembers the last receipts. A receipt of a new epoch tells that there was a failover."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._batches: deque[tuple[str, Sequence[Receipt]]] = deque()
        self._events, self._epoch = 0, ""
        self._reporting: asyncio.Task[None] | None = None

    def add(self, channel: str, receipts: Sequence[Receipt]) -> None:
        """Remember a publish."""
        # The position of a repeat says nothing about this server.
        if fresh := next((each for each in reversed(receipts) if not each.duplicate), None):
            self._notice_failover(fresh.position.partition("-")[0])
        self._batches.append((channel, receipts))
        self._events += len(receipts)
        while self._events > _KEPT and len(self._batches) > 1:
            self._events -= len(self._batches.popleft()[1])

    async def close(self) -> None:
        """Wait for a report that is on its way."""
        if self._reporting is not None:
            await asyncio.gather(self._reporting, return_exceptions=True)

    def _notice_failover(self, epoch: str) -> None:
        if not self._epoch:
            self._epoch = epoch
        elif epoch != self._epoch and (self._reporting is None or self._reporting.done()):
            self._reporting = asyncio.create_task(self._report())

    async def _report(self) -> None:
        """Record and log what is lost. Where that fails, the next publish begins it again."""
        before, self._batches, self._events = self._batches, deque(), 0
        events = [(channel, each) for channel, receipts in before for each in receipts]
        places = [numbers(each.position) for _, each in events]
        try:
            rows = await self._session.rows(
                "report_lost",
                channels=TextArray([channel for channel, _ in events]),
                ids=TextArray([each.id for _, each in events]),
                epochs=NumberArray([epoch for epoch, _ in places]),
                seqs=NumberArray([seq for _, seq in places]),
            )
        except STORE_ERRORS as error:
            raise_if_cancelled(error)
            log.warning("what the failover has lost cannot be reported yet: %r", error)
            self._batches.extendleft(reversed(before))
            self._events += len(events)
            return
        self._epoch = ""
        _tell(rows, len(events))


def _tell(rows: Sequence[tuple[str, int, int]], remembered: int) -> None:
    for channel, lost in groupby(sorted(rows), key=lambda row: row[0]):
        positions = [format_position(*row[1:]) for row in lost]
        log.error(
            "the failover has lost %s acknowledged events of channel %r, at %s to %s, among the last %s that "
            "this process has published. The table holdfast.lost names them; publish them again, same ids",
            *(len(positions), channel, positions[0], positions[-1], remembered),
        )
    if not rows:
        log.info("the failover has lost none of the last %s events of this process", remembered)
