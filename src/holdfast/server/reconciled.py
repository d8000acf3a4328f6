"""Reconciliations: what the last one of each channel found."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from holdfast.contracts import Backend
from holdfast.upkeep.reports import latest_reports, reconciliation

SHOWN = 100


@dataclass(frozen=True, slots=True)
class Reconciled:
    """The last reconciliation of a channel."""

    at: datetime
    report: dict[str, Any]

    @property
    def verdict(self) -> str:
        """`equal`, `on its way` where nothing is wrong but late, or `not equal`."""
        wrong = {each["kind"] for each in self.report["tallies"]}
        return "not equal" if wrong - {"waiting"} else "on its way" if wrong else "equal"


async def read_reconciled(store: Backend, namespace: str) -> list[Reconciled]:
    """Of every channel that was reconciled, the latest first."""
    found = await latest_reports(store, namespace, reconciliation(), SHOWN)
    return [Reconciled(at, report) for at, report in found]
