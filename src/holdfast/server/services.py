"""Services that the supervisor runs: upkeep of the stores, operations, and commands in child processes."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import IO

from prometheus_client.core import Metric

from holdfast.bus.partitions import Partition, Partitions
from holdfast.bus.shutdown import GRACE, PARENT_WATCH
from holdfast.contracts import STORE_ERRORS, raise_if_cancelled
from holdfast.deadletters.runner import Runner
from holdfast.deadletters.service import Folding
from holdfast.model.errors import HoldfastError
from holdfast.server.auth.sessions import ExpiringRecords
from holdfast.server.catalog import SWEEP_SECONDS, SWEEPER_ACTIONS, SWEEPS, family, observed
from holdfast.upkeep.announcements import Swept
from holdfast.upkeep.lifecycle import INTERVAL
from holdfast.upkeep.sweeper import Sweeper

log = logging.getLogger(__name__)

LONGEST_PAUSE = 30.0
"""The longest time between two checks of the deltas: many of them are folded before the interval is over."""
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
OPERATIONS_PAUSE, STATUS_PAUSE = 1.0, 1.0
LONG_LOG = 16 << 20
TAIL, TAIL_BYTES, LONGEST_LINE = 15, 8 << 10, 300
_STOPPED = {0, -signal.SIGTERM, 128 + signal.SIGTERM}
"""It has drained, or had begun nothing that it could drain: Spark was still starting."""
StatusOf = Callable[[int], Awaitable[str]]
"""What the process of that number is doing."""


class LifecycleService:
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
        """Whether the store responds."""
        health = self._partition.health
        return f"the store does not answer: {health.reason}" if health.faulty else "the store answers"


class SweeperService:
    """The sweeper of one partition."""

    def __init__(self, partition: Partition, sweeper: Sweeper, interval: timedelta) -> None:
        self.name = f"sweeper-{partition.index}"
        self._partition, self._sweeper, self._interval = partition, sweeper, interval
        self._status = "not yet swept"
        self._outcomes: Counter[str] = Counter(done=0, skipped=0, failed=0)
        self._actions: Counter[str] = Counter(dict.fromkeys(ACTIONS, 0))
        self._seconds = observed(SWEEP_SECONDS, SECONDS)
        self._seconds.labels(partition.index)  # exposed from the start, as 0

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


def actions(report: Swept) -> dict[str, int]:
    """How much a sweep did, by kind."""
    found = {name: getattr(report, name) for name in ACTIONS}
    done = {name: sum(value.values()) if isinstance(value, dict) else value for name, value in found.items()}
    return done | report.chores


class FoldingService:
    """Folds dead-letter deltas on every store, as each instance does: a lock makes it once between them."""

    name = "dlq-summary"

    def __init__(self, partitions: Partitions, owner: str, interval: timedelta) -> None:
        self._partitions, self._owner, self._interval = partitions, owner, interval
        self._status = "not yet looked"

    async def run(self) -> None:
        """Fold until cancelled, at once on start."""
        while True:
            await self.run_once()
            await asyncio.sleep(max(1.0, min(self._interval.total_seconds(), LONGEST_PAUSE)))

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


class ExpiryService:
    """Removes expired records in every process that serves HTTP: `serve` may be the only one that runs."""

    name = "sessions"

    def __init__(self, records: Sequence[ExpiringRecords]) -> None:
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


class OperationsService:
    """Runs operations, a few at once."""

    name = "operations"

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._trouble = ""

    async def run(self) -> None:
        """Look for something to do until cancelled. What is cut off is resumed by whoever looks next."""
        while True:
            try:
                await self._runner.serve()
            except HoldfastError as error:
                log.warning("operations cannot be read: %s", error)
                self._trouble = f"waits for the store: {error}"
            await asyncio.sleep(OPERATIONS_PAUSE)
            self._trouble = ""

    def status(self) -> str:
        """How many it runs."""
        running = self._runner.running
        return self._trouble or (f"{running} under way" if running else "nothing to do")


class ChildProcess:
    """Runs `holdfast ARGUMENTS` for as long as the supervisor wants it, and never longer than we live.

    Its logs go into the folder `logs`, or where ours go.
    """

    def __init__(
        self,
        name: str,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        logs: Path | None = None,
        status_of: StatusOf | None = None,
    ) -> None:
        self.name = name
        self._arguments, self._environment, self._logs = arguments, environment, logs
        self._status_of = status_of
        self._status = "starting"

    async def run(self) -> None:
        """Run the command until cancelled, then stop it. Raises `HoldfastError` when it ends before that."""
        with self._open_log() as errors:
            begin = 0 if errors is None else errors.tell()
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "holdfast.cli",
                *self._arguments,
                env={**self._environment, PARENT_WATCH: "stdin"},
                stdin=asyncio.subprocess.PIPE,  # never written to: the kernel closes it when we die
                stdout=asyncio.subprocess.DEVNULL,
                stderr=errors,
                start_new_session=True,  # Ctrl-C is for us: we tell the child when to stop
            )
        self._status = f"process {process.pid}"
        following = asyncio.create_task(self._follow(process.pid))
        try:
            code = await process.wait()
        except asyncio.CancelledError:
            following.cancel()
            await self._stop(process)
            raise
        finally:
            following.cancel()
        raise HoldfastError(f"holdfast {self._arguments[0]} ended with {code}: {self._why(begin)}")

    async def _follow(self, pid: int) -> None:
        """Keep the status up to date. A store that does not answer has no news."""
        while self._status_of is not None:
            with contextlib.suppress(HoldfastError):
                self._status = f"{await self._status_of(pid)}, process {pid}"
            await asyncio.sleep(STATUS_PAUSE)

    def _why(self, begin: int) -> str:
        """The last line that the child has logged since `begin`; the lines before it go into our own log."""
        if self._logs is None:
            return "its log is where this process's is"
        path = self._logs / f"{self.name}.log"
        with path.open("rb") as file:
            file.seek(max(begin, path.stat().st_size - TAIL_BYTES))
            lines = [line for line in file.read().decode(errors="replace").splitlines() if line.strip()]
        for line in lines[-TAIL:]:
            log.warning("%s: %s", path.name, line)
        return f"{lines[-1].strip()[:LONGEST_LINE]} (see {path})" if lines else f"{path} says nothing of it"

    @contextlib.contextmanager
    def _open_log(self) -> Iterator[IO[bytes] | None]:
        """The child's log, which goes on where it ended; a long one is put aside first."""
        if self._logs is None:
            yield None
            return
        self._logs.mkdir(parents=True, exist_ok=True)
        path = self._logs / f"{self.name}.log"
        if path.exists() and path.stat().st_size > LONG_LOG:
            path.replace(path.with_name(f"{path.name}.old"))
        with path.open("ab") as file:
            yield file

    async def _stop(self, process: asyncio.subprocess.Process) -> None:
        self._status = "stopping"
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        try:
            code = await asyncio.wait_for(process.wait(), GRACE)
        except (TimeoutError, asyncio.CancelledError):
            process.kill()
            await process.wait()
            raise
        if code not in _STOPPED:
            raise HoldfastError(f"holdfast {self._arguments[0]} ended with {code} when it was told to stop")

    def status(self) -> str:
        """What it does, and which process it is."""
        return self._status
