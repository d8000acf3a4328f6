"""Rebuild: a warehouse that was lost or damaged, filled again from what the WAL still has."""

from __future__ import annotations

import logging

from holdfast.model.errors import Damaged
from holdfast.pipeline.failed.service import FailedEvents
from holdfast.pipeline.wal import BatchKey, Wal, segments
from holdfast.pipeline.wal.rows import healthy
from holdfast.pipeline.warehouse import Load, Warehouse

log = logging.getLogger(__name__)


def rebuild(wal: Wal, warehouse: Warehouse, failed: FailedEvents) -> int:
    """Load every batch that was confirmed, with the outcome that it had; answers how many.

    What is pending is left to the loader. What was cleaned up is no longer here: the archive has it.
    Changes nothing where nothing is missing, so that it can be repeated.
    """
    survey, loaded = wal.survey(), 0
    for name in sorted(survey.confirmed):
        try:
            batch = wal.batch(name)
            rows = healthy(wal, name, segments.read_all(wal.store, batch.segments))
        except Damaged as damage:
            log.error("batch %s cannot be loaded again: %s", name, damage)
            continue
        warehouse.load([Load(name, batch.channels, rows)])
        loaded += 1
    for name in survey.failed:
        gave_up = wal.gave_up(name)
        if gave_up is not None:
            warehouse.refuse(name, (BatchKey.parse(name).channel,), gave_up.reason)
    failed.mirror(everything=True)
    return loaded
