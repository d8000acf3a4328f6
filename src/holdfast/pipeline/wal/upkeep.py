"""Upkeep of the WAL: what is confirmed goes after a while, and what was staged for nothing."""

from __future__ import annotations

import logging
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from holdfast import failpoints
from holdfast.model.errors import Damaged, NotFound
from holdfast.pipeline.wal.log import Wal
from holdfast.pipeline.wal.segments import FOLDER, STAMP

log = logging.getLogger(__name__)
ABANDONED = timedelta(days=1)
"""A segment that no batch names after this time belongs to a driver that died."""


class Cleaned(NamedTuple):
    """How much went."""

    batches: int
    segments: int


class WalUpkeep:
    """The upkeep of one WAL. It remembers what confirmations say: that never changes."""

    def __init__(self, wal: Wal) -> None:
        self._wal = wal
        self._confirmed: dict[str, tuple[datetime, frozenset[str]]] = {}
        """When each was confirmed, and its segments."""

    def run_once(self) -> Cleaned:
        """One round. Failed records stay: they are all that is left of their events here."""
        wal, names = self._wal, set(self._wal.records.names("confirmed"))
        for name in names.intersection(wal.records.names("pending")):
            wal.close(name)  # a loader died before it did
        for name in names - self._confirmed.keys():
            self._look(name)
        over = wal.clock() - wal.settings.confirmed_retention
        gone = sorted(name for name in names & self._confirmed.keys() if self._confirmed[name][0] <= over)
        for name in gone:
            _remove(wal, name)
        left = names.difference(gone)
        self._confirmed = {name: known for name, known in self._confirmed.items() if name in left}
        return Cleaned(len(gone), self._remove_orphans(left))

    def _look(self, name: str) -> None:
        try:
            confirmation = self._wal.confirmation(name)
            segments = frozenset(segment.name for segment in self._wal.batch(name).segments)
        except (Damaged, NotFound) as damage:
            log.error("%s", damage)
            return
        if confirmation is not None:
            self._confirmed[name] = confirmation.confirmed_at, segments

    def _remove_orphans(self, confirmed: set[str]) -> int:
        """Segments that no batch names. Where one cannot be read, it may name any of them."""
        wal = self._wal
        before = wal.clock() - ABANDONED
        old = {entry.name for entry in wal.store.list(FOLDER) if _staged_at(entry.name) < before}
        old = old.difference(*(segments for _, segments in self._confirmed.values()))
        if not old or confirmed - self._confirmed.keys():
            return 0
        try:
            survey = wal.survey()
            for name in {*survey.pending, *survey.failed, *survey.quarantined}:
                old -= {segment.name for segment in wal.batch(name).segments}
        except (Damaged, NotFound):
            return 0
        for name in old:
            wal.store.delete(name)
        return len(old)


def _remove(wal: Wal, name: str) -> None:
    """The confirmation goes last, so that a batch half removed is not taken for a pending one."""
    records = wal.records
    try:
        segments = wal.batch(name).segments
    except (NotFound, Damaged):  # half removed before; its segments are orphans
        segments = ()
    for segment in segments:
        wal.store.delete(segment.name)
    failpoints.hit("wal.mid_clean")
    for folder in ("leases", "attempts", "repairs", "quarantine", "repeated"):
        for each in list(records.names(f"{folder}/{name}")):
            records.remove(f"{folder}/{name}/{each}")
    records.remove(f"confirmed/{name}")


def _staged_at(name: str) -> datetime:
    stamp = name.rpartition("/")[2].partition("-")[0]
    return datetime.strptime(stamp, STAMP).replace(tzinfo=UTC)
