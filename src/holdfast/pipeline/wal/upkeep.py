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


def clean(wal: Wal) -> Cleaned:
    """One round. Failed records stay: they are all that is left of their events here."""
    gone = [name for name in sorted(wal.survey().confirmed) if _is_old(wal, name)]
    for name in gone:
        _remove(wal, name)
    return Cleaned(len(gone), _remove_orphans(wal))


def _is_old(wal: Wal, name: str) -> bool:
    try:
        confirmation = wal.confirmation(name)
    except Damaged as damage:
        log.error("%s", damage)
        return False
    age = timedelta(0) if confirmation is None else wal.clock() - confirmation.confirmed_at
    return confirmation is not None and age >= wal.settings.confirmed_retention


def _remove(wal: Wal, name: str) -> None:
    """The confirmation goes last, so that a batch half removed is not taken for a pending one."""
    journal = wal.journal
    try:
        segments = wal.batch(name).segments
    except (NotFound, Damaged):  # half removed before; its segments are orphans
        segments = ()
    journal.remove(f"pending/{name}")
    for segment in segments:
        wal.store.delete(segment.name)
    failpoints.hit("wal.mid_clean")
    for folder in ("leases", "attempts", "repairs", "quarantine"):
        for each in list(journal.names(f"{folder}/{name}")):
            journal.remove(f"{folder}/{name}/{each}")
    journal.remove(f"confirmed/{name}")


def _remove_orphans(wal: Wal) -> int:
    old = [entry.name for entry in wal.store.list(FOLDER) if _staged_at(entry.name) < wal.clock() - ABANDONED]
    if not old:
        return 0
    try:
        named = _named(wal)
    except Damaged:
        return 0
    orphans = [name for name in old if name not in named]
    for name in orphans:
        wal.store.delete(name)
    return len(orphans)


def _named(wal: Wal) -> set[str]:
    """The segments of all batches that are there; `Damaged` where one cannot be read: it may name any."""
    names = list(wal.journal.names("pending"))
    return {segment.name for name in names for segment in wal.batch(name).segments}


def _staged_at(name: str) -> datetime:
    stamp = name.rpartition("/")[2].partition("-")[0]
    return datetime.strptime(stamp, STAMP).replace(tzinfo=UTC)
