"""The memory of reconciliations: the last one of each channel, as a state record in the first store."""

from __future__ import annotations

import logging

from holdfast.model.errors import HoldfastError
from holdfast.pipeline.connection import Connection
from holdfast.pipeline.reconcile.report import Report
from holdfast.upkeep.reports import put_report, reconciliation

log = logging.getLogger(__name__)

NAMED = 20
"""So many differences are kept with it."""


def remember(connection: Connection, namespace: str, report: Report) -> None:
    """Keep it in place of the one before. Where that fails, the reconciliation itself still holds."""
    told = report.to_json()
    told["differences"] = told["differences"][:NAMED]
    name = reconciliation(report.channel)
    try:
        connection.run(put_report(connection.backends[0], namespace, name, told, listed=True))
    except HoldfastError as error:
        log.warning("the report on %s could not be kept for the server: %s", report.channel, error)
