"""Rebuild: a warehouse that was lost or damaged, filled again from what the WAL still has."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator

from holdfast.model.errors import Damaged
from holdfast.pipeline.failed.service import FailedEvents
from holdfast.pipeline.loader.decisions import groups
from holdfast.pipeline.wal import Batch, Wal, segments
from holdfast.pipeline.wal.rows import healthy
from holdfast.pipeline.warehouse import Load, Warehouse

log = logging.getLogger(__name__)


def rebuild(wal: Wal, warehouse: Warehouse, failed: FailedEvents) -> int:
    """Load every batch that was confirmed, with the outcome that it had; returns how many.

    What is pending is left to the loader. What was cleaned up is no longer here: the archive has it.
    Changes nothing where nothing is missing, so that it can be repeated.
    """
    loaded = 0
    for group in groups(list(_confirmed(wal))):
        loads = list(_loads(wal, group))
        warehouse.load(loads)
        loaded += len(loads)
    for name in wal.survey().failed:
        gave_up = wal.gave_up(name)
        if gave_up is not None:
            channels = sorted({part.channel for part in wal.parts(name)})
            warehouse.refuse(name, channels, gave_up.reason)
    failed.mirror(everything=True)
    return loaded


def _confirmed(wal: Wal) -> Iterator[Batch]:
    for name in wal.journal.names("confirmed"):
        try:
            yield wal.batch(name)
        except Damaged as damage:
            log.error("batch %s cannot be loaded again: %s", name, damage)


def _loads(wal: Wal, batches: Iterable[Batch]) -> Iterator[Load]:
    for batch in batches:
        try:
            rows = healthy(wal, batch.name, segments.read_all(wal.store, batch.segments))
        except Damaged as damage:
            log.error("batch %s cannot be loaded again: %s", batch.name, damage)
            continue
        yield Load(batch.name, batch.channels, rows)
