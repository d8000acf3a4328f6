"""The demo's pipeline: a driver that is killed, the archive, the warehouse, and whether all three agree."""

from __future__ import annotations

import asyncio
import signal
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.cli.demo.orders import bomb_channel
from holdfast.failpoints import VARIABLE
from holdfast.model.errors import HoldfastError

if TYPE_CHECKING:  # Spark takes longer to import than most commands to run
    from holdfast.cli.demo.steps import DemoRun
    from holdfast.pipeline.ingest.plan import IngestPlan
    from holdfast.pipeline.reconcile.report import ReconcileReport

_POINT = "archive.after_manifest"
_MASTER = "local[2]"


class Pipeline:
    """What the pipeline's steps share: the folder, and one Spark session for all of them."""

    def __init__(self, folder: Path, urls: list[str], stack: ExitStack) -> None:
        self.folder, self._urls, self._stack = folder.resolve(), urls, stack
        self._spark: Any = None
        self._doomed: asyncio.subprocess.Process | None = None
        self.reports: list[ReconcileReport] = []

    async def start_driver(self, run: DemoRun) -> str:
        """A driver that will be killed right between two steps of its commit."""
        pattern = f"{run.channel.rpartition('.')[0]}.>"
        arguments = ["archive", "--once", "--stream", pattern, "--destination", str(self.folder / "archive")]
        self._doomed = await run.processes.run(
            [*arguments, "--checkpoints", str(self.folder / "checkpoints"), "--master", _MASTER],
            {VARIABLE: f"{_POINT}=kill"},
        )
        return f"driver {self._doomed.pid} archives meanwhile; it will be killed before its cursor moves"

    async def archive(self, run: DemoRun) -> str:
        """The next driver takes over from the killed one."""
        assert self._doomed is not None  # noqa: S101 - the steps have an order
        code = await self._doomed.wait()
        if code != -signal.SIGKILL:
            raise run.processes.failure(self._doomed, "driver", " instead of being killed")
        metrics = await asyncio.to_thread(self._archive, f"{run.channel.rpartition('.')[0]}.>")
        objects = sum(each.objects for each in metrics.channels.values())
        rows = sum(each.rows for each in metrics.channels.values())
        return (
            f"driver {self._doomed.pid} was killed between manifest and cursor; the next one took over: "
            f"{rows:,} events in {objects} objects"
        )

    def _archive(self, pattern: str) -> Any:
        from holdfast.cli.spark import session
        from holdfast.pipeline.archive.archiver import Archiver
        from holdfast.pipeline.archive.policy import ArchivePolicy

        self._spark = self._stack.enter_context(session(_MASTER, name="holdfast demo"))
        policy = ArchivePolicy(pattern, str(self.folder / "archive"))
        return Archiver(self._spark, self._urls, [policy], self.folder / "checkpoints").run_once()

    async def ingest(self, run: DemoRun) -> str:
        """Through the WAL into the warehouse."""
        summary = await asyncio.to_thread(self._ingest, run.channel)
        return f"{summary.loaded:,} events in the warehouse, each once; {summary.failed} failed"

    def _ingest(self, channel: str) -> Any:
        from holdfast.pipeline.ingest.driver import Ingest

        return Ingest(self._spark, self._urls, self._plan(channel), self.folder / "checkpoints").run_once()

    def _plan(self, channel: str) -> IngestPlan:
        from holdfast.pipeline.ingest.plan import IngestPlan
        from holdfast.pipeline.wal import WalSettings

        settings = replace(WalSettings(), path=str(self.folder / "wal"))
        return IngestPlan(
            (channel, bomb_channel(channel)), f"duckdb://{self.folder / 'warehouse.duckdb'}", settings
        )

    async def reconcile(self, run: DemoRun) -> str:
        """Event by event: published = archived = ingested + failed."""
        self.reports = await asyncio.to_thread(self._reconcile, run.channel)
        if not all(report.equal for report in self.reports):
            raise HoldfastError(f"the books differ: {[each.to_json() for each in self.reports]}")
        return "published = archived = ingested + failed, event by event"

    def _reconcile(self, channel: str) -> list[ReconcileReport]:
        from holdfast.pipeline.reconcile.inputs import Inputs
        from holdfast.pipeline.reconcile.job import reconcile

        inputs = [
            Inputs(name, tuple(self._urls), str(self.folder / "archive"), plan=self._plan(channel))
            for name in (channel, bomb_channel(channel))
        ]
        return [reconcile(self._spark, each) for each in inputs]
