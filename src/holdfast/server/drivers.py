"""Drivers: what the Spark drivers, processes of their own, last reported, and whether they are well."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from prometheus_client.core import Metric

from holdfast.bus.partitions import Partition
from holdfast.contracts import Backend
from holdfast.model.errors import HoldfastError
from holdfast.server import catalog as c
from holdfast.server.families import Counted, Family, family, histogram
from holdfast.upkeep.reports import driver, get_report

NAMES = ("archive", "ingest")
LATE = 3
"""So many of its own intervals without a word, and a driver counts as gone."""
PATIENCE = 5.0
_WAL: dict[Family, str] = {
    c.WAL_WRITES: "writes",
    c.WAL_CONFIRMS: "confirms",
    c.WAL_RETRIES: "retries",
    c.WAL_FAILURES: "failures",
    c.WAL_RECOVERIES: "recoveries",
    c.WAL_PENDING: "pending_entries",
    c.WAL_BYTES: "bytes",
    c.WAL_LIMIT: "limit_bytes",
    c.WAL_OLDEST: "oldest_seconds",
    c.WAL_READY: "ready",
    c.UNLOADED: "unloaded_seconds",
}


@dataclass(frozen=True, slots=True)
class Driver:
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


async def read_drivers(store: Backend, namespace: str) -> dict[str, Driver]:
    """The drivers that ever reported, by name."""
    now, found = await store.now(), {}
    for name in NAMES:
        if (told := await get_report(store, namespace, driver(name))) is not None:
            at, report = told
            found[name] = Driver(name, max(0.0, (now - at).total_seconds()), report)
    return found


async def standing(first: Partition, namespace: str, name: str, pid: int) -> str:
    """What the driver that runs as this process does, as far as it has told."""
    found = (await read_drivers(first.backend, namespace)).get(name) if first.opened else None
    mine = found is not None and found.report["owner"].endswith(f":{pid}")
    if found is None or (not mine and found.trouble):
        return "Spark is starting"
    if not mine:
        return f"waits while {found.report['owner']} is at work"
    return f"it fails: {found.report['error']}" if found.report["state"] == "failing" else "at work"


async def troubles(store: Backend, namespace: str, expected: set[str]) -> list[str]:
    """What is wrong with the drivers that should be at work."""
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


async def read_pipeline(store: Backend, namespace: str) -> list[Metric]:
    """All that the drivers tell, as metrics."""
    found = await read_drivers(store, namespace)
    told = {(name,): each.report for name, each in found.items()}
    channels = {
        (name, channel): totals
        for name, each in found.items()
        for channel, totals in each.report["channels"].items()
    }
    since = {
        (name,): each.age + each.report["last_batch_seconds"]
        for name, each in found.items()
        if each.report["last_batch_seconds"] is not None
    }
    return [
        family(c.DRIVER_UP, {(name,): each.trouble is None for name, each in found.items()}),
        family(c.DRIVER_AGE, {(name,): each.age for name, each in found.items()}),
        family(c.DRIVER_FAILURES, {key: report["failures"] for key, report in told.items()}),
        family(c.BATCHES, {key: report["batches"] for key, report in told.items()}),
        family(c.ROWS, {key: totals["rows"] for key, totals in channels.items()}),
        family(c.BYTES, {key: totals["bytes"] for key, totals in channels.items()}),
        histogram(c.BATCH_SECONDS, {key: _counted(report["seconds"]) for key, report in told.items()}),
        family(c.LAST_BATCH, since),
        *(_wal(found["ingest"].report["wal"]) if "ingest" in found else ()),
    ]


def _wal(told: dict[str, Any]) -> list[Metric]:
    states = {(state,): told[f"{state}_batches"] for state in ("pending", "failed", "quarantined")}
    return [
        *(family(each, {(): told[field]}) for each, field in _WAL.items()),
        family(c.WAL_BATCHES, states),
        family(c.FRESHNESS, {} if told["freshness_seconds"] is None else {(): told["freshness_seconds"]}),
    ]


def _counted(told: dict[str, Any]) -> Counted:
    bounds = [*told["bounds"], float("inf")]
    return Counted(list(zip(bounds, told["counts"], strict=True)), told["sum"])
