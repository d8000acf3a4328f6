"""Parts: the lifecycle and the sweeper of each partition, the summary of dead letters, expired sessions."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import timedelta

from prometheus_client.core import Metric

from holdfast.bus.partitions import Partition, Partitions
from holdfast.contracts import STORE_ERRORS, raise_if_cancelled
from holdfast.deadletters.folding import Folding
from holdfast.model.errors import HoldfastError
from holdfast.server.auth.expiring import Expiring
from holdfast.server.catalog import SWEEP_SECONDS, SWEEPER_ACTIONS, SWEEPS
from holdfast.server.families import family, observed
from holdfast.upkeep.announcements import Swept
from holdfast.upkeep.lifecycle import INTERVAL
from holdfast.upkeep.sweeper import Sweeper

log = logging.getLogger(__name__)

LOOK = 30.0
"""The longest time between two looks at the deltas: many of them are folded before the interval is over."""
EXPIRY = 60.0
"""How often expired sessions, links and used signatures are removed."""
SECONDS = (0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60, 300)
ACTIONS = (
    "retried",
    "buried",
    "promoted",
    "forgotten_keys",
    "forgotten_jobs",
    "trimmed",
    "dropped",
    "purged",
)


class LifecyclePart:
    """The lifecycle of one partition. A store that is not there at the start is opened when it is."""

    def __init__(self, partitions: Partitions, partition: Partition) -> None:
        self.name = f"lifecycle-{partition.index}"
        self._partitions, self._partition = partitions, partition

    async def run(self) -> None:
        """Step until cancelled."""
        while not self._partition.opened:
            try:
                await self._partitions.ready(self._partition)
            except STORE_ERRORS as error:
                raise_if_cancelled(error)
                log.info("partition %s cannot be opened: %r", self._partition.index, error)
                await asyncio.sleep(INTERVAL)
        await self._partition.lifecycle.run()

    def status(self) -> str:
        """Whether the store answers."""
        health = self._partition.health
        return f"the store does not answer: {health.reason}" if health.faulty else "the store answers"

    def metrics(self) -> Iterator[Metric]:
        """Nothing of its own: the bus knows what steps of the lifecycle did."""
        yield from ()


class SweeperPart:
    """The sweeper of one partition."""

    def __init__(self, partition: Partition, sweeper: Sweeper, interval: timedelta) -> None:
        self.name = f"sweeper-{partition.index}"
        self._partition, self._sweeper, self._interval = partition, sweeper, interval
        self._status = "not yet swept"
        self._outcomes: Counter[str] = Counter(done=0, skipped=0, failed=0)
        self._actions: Counter[str] = Counter(dict.fromkeys(ACTIONS, 0))
        self._seconds = observed(SWEEP_SECONDS, SECONDS)
        self._seconds.labels(partition.index)  # told from the start, as 0

    async def run(self) -> None:
        """Sweep until cancelled, at once on start, then every interval."""
        while True:
            await self._sweep()
            await asyncio.sleep(self._interval.total_seconds())

    async def _sweep(self) -> None:
        if not self._partition.opened:  # its lifecycle opens it
            self._outcomes["failed"] += 1
            self._status = "waits for its store"
            return
        try:
            report = await self._sweeper.run_once()
        except STORE_ERRORS as error:
            raise_if_cancelled(error)
            known = isinstance(error, HoldfastError)
            log.warning("the sweep failed: %s", error if known else repr(error), exc_info=not known)
            self._partition.count_error("sweep", error)
            self._outcomes["failed"] += 1
            self._status = f"the last sweep failed: {error if known else repr(error)}"
            return
        if report is None:
            self._outcomes["skipped"] += 1
            self._status = "another sweeper is at work"
            return
        done = actions(report)
        self._outcomes["done"] += 1
        self._seconds.labels(self._partition.index).observe(report.duration_seconds)
        self._actions.update(done)
        words = [f"{count:,} {name.replace('_', ' ')}" for name, count in done.items() if count]
        self._status = ", ".join(words) or "nothing to do"

    def status(self) -> str:
        """What the last sweep did."""
        return self._status

    def metrics(self) -> Iterator[Metric]:
        """What all sweeps did."""
        partition = str(self._partition.index)
        yield family(SWEEPS, {(partition, name): count for name, count in self._outcomes.items()})
        yield family(SWEEPER_ACTIONS, {(partition, name): count for name, count in self._actions.items()})
        yield from self._seconds.collect()


class FoldingPart:
    """Folds dead-letter deltas on every store, as each instance does: a lock makes it once between them."""

    name = "dlq-summary"

    def __init__(self, partitions: Partitions, owner: str, interval: timedelta) -> None:
        self._partitions, self._owner, self._interval = partitions, owner, interval
        self._status = "not yet looked"

    async def run(self) -> None:
        """Fold until cancelled, at once on start."""
        while True:
            await self.run_once()
            await asyncio.sleep(max(1.0, min(self._interval.total_seconds(), LOOK)))

    async def run_once(self) -> int:
        """Fold where it is time; returns how many deltas were folded. A store that fails stops no other."""
        folded, problems = 0, []
        for partition in self._partitions.all:
            try:
                store = (await self._partitions.ready(partition)).backend
                folded += (await Folding(store, self._owner, self._interval).fold()).folded
            except STORE_ERRORS as error:
                raise_if_cancelled(error)
                partition.count_error("fold", error)
                log.info("dead-letter deltas of partition %s were not folded: %r", partition.index, error)
                problems.append(f"partition {partition.index}: {error}")
        self._status = "; ".join(problems) or "up to date"
        return folded

    def status(self) -> str:
        """What went wrong in the last look, if anything did."""
        return self._status

    def metrics(self) -> Iterator[Metric]:
        """Nothing of its own: the counts are read from the stores."""
        yield from ()


class ExpiryPart:
    """Removes expired records in every process that serves HTTP: `serve` may be the only one that runs."""

    name = "sessions"

    def __init__(self, records: Sequence[Expiring]) -> None:
        self._records = records
        self._status = "not yet looked"

    async def run(self) -> None:
        """Look until cancelled, at once on start."""
        while True:
            await self.run_once()
            await asyncio.sleep(EXPIRY)

    async def run_once(self) -> int:
        """Remove what has expired; returns how many records that were."""
        removed = 0
        try:
            for each in self._records:
                removed += await each.remove_expired()
        except STORE_ERRORS as error:
            raise_if_cancelled(error)
            log.info("expired sessions were not removed: %r", error)
            self._status = f"waits for the store: {error}"
            return removed
        self._status = f"{removed} removed" if removed else "nothing to do"
        return removed

    def status(self) -> str:
        """What the last look did."""
        return self._status

    def metrics(self) -> Iterator[Metric]:
        """Nothing of its own."""
        yield from ()


def actions(report: Swept) -> dict[str, int]:
    """How much a sweep did, by kind."""
    found = {name: getattr(report, name) for name in ACTIONS}
    done = {name: sum(value.values()) if isinstance(value, dict) else value for name, value in found.items()}
    return done | report.chores
