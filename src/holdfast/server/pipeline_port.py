"""The pipeline as the server sees it: a port to read it through, and the reports that its drivers leave.

The server does not import the pipeline. Whoever starts the server hands in the port, if there is a pipeline.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

from holdfast.bus.partitions import Partition
from holdfast.contracts import Backend
from holdfast.deadletters.sources import FailedRecords
from holdfast.model.errors import HoldfastError
from holdfast.upkeep.state import driver, get_report, latest_reports, reconciliation

DRIVERS = ("archive", "ingest")
LATE = 3
"""After so many of its own intervals without a report a driver counts as gone."""
PATIENCE = 5.0
RECONCILED = 100
"""The most reconciliations that are shown."""


class TraceStep(Protocol):
    """One thing that happened to an event."""

    @property
    def at(self) -> datetime | None: ...
    @property
    def what(self) -> str: ...
    @property
    def where(self) -> str: ...
    @property
    def detail(self) -> str: ...


class TraceResult(Protocol):
    """What is known of one event, in order."""

    @property
    def channel(self) -> str: ...
    @property
    def source(self) -> str: ...
    @property
    def id(self) -> str: ...
    @property
    def steps(self) -> Sequence[TraceStep]: ...


class PipelinePort(Protocol):
    """Reads the state of the pipeline. Its methods may block, but for `query`."""

    @property
    def records(self) -> FailedRecords | None:
        """What the ingest gave up on; None without an ingest."""

    def trace(self, event_id: str, channel: str | None, source: str | None) -> Sequence[TraceResult]:
        """Every event of that id with its whole life; `NotFound` where there is none."""

    async def query(self, sql: str, *, rows: int, size: int, audit: bool) -> bytes:
        """The result of a query on the warehouse as JSON, cut after so many rows or bytes. `InvalidInput` for
        SQL that is wrong, not allowed or takes too much, and where the warehouse has the audit, which without
        `audit` must not be read. `NotFound` where there is no warehouse, `Unavailable` where others have it.
        """


@dataclass(frozen=True, slots=True)
class DriverReport:
    """A driver's last report, and how old it is in the store's time."""

    name: str
    age: float
    report: dict[str, Any]

    @property
    def trouble(self) -> str | None:
        """What is wrong with it, if anything is."""
        wal = self.report.get("wal")
        if self.report["state"] == "failing":
            return f"the {self.name} driver fails: {self.report['error']}"
        if self.report["state"] == "stopped":
            return f"the {self.name} driver has stopped"
        if self.age > LATE * self.report["interval"]:
            return f"the {self.name} driver has not reported for {self.age:.0f} s"
        return f"the WAL is not ready: {wal['message']}" if wal is not None and not wal["ready"] else None


async def read_drivers(store: Backend, namespace: str) -> dict[str, DriverReport]:
    """The last reports of the drivers that ever reported, by name."""
    now, found = await store.now(), {}
    for name in DRIVERS:
        if (last := await get_report(store, namespace, driver(name))) is not None:
            at, report = last
            found[name] = DriverReport(name, max(0.0, (now - at).total_seconds()), report)
    return found


async def driver_status(first: Partition, namespace: str, name: str, pid: int) -> str:
    """What the driver that runs as this process is doing, as far as it has reported."""
    found = (await read_drivers(first.backend, namespace)).get(name) if first.opened else None
    mine = found is not None and found.report["owner"].endswith(f":{pid}")
    if found is None or (not mine and found.trouble):
        return "Spark is starting"
    if not mine:
        return f"waits while {found.report['owner']} is at work"
    return f"it fails: {found.report['error']}" if found.report["state"] == "failing" else "at work"


async def troubles(store: Backend, namespace: str, expected: set[str]) -> list[str]:
    """What is wrong with the drivers that are expected to run."""
    if not expected:
        return []
    try:
        async with asyncio.timeout(PATIENCE):
            found = await read_drivers(store, namespace)
    except (HoldfastError, TimeoutError) as error:
        return [f"the drivers' reports cannot be read: {error!r}"]
    missing = [f"the {name} driver has not reported yet" for name in sorted(expected - set(found))]
    wrong = [found[name].trouble for name in sorted(expected & set(found))]
    return missing + [each for each in wrong if each is not None]


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
    """The last reconciliation of every channel that has one, the latest first."""
    found = await latest_reports(store, namespace, reconciliation(), RECONCILED)
    return [Reconciled(at, report) for at, report in found]
