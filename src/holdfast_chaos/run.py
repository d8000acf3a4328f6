"""A run on each kind of store, side by side, and one report of them all."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from importlib.util import find_spec
from pathlib import Path

from holdfast_chaos.archive_store import ArchiveStore, archive_store
from holdfast_chaos.check_run import check_run
from holdfast_chaos.disk import Disk
from holdfast_chaos.nemesis import Nemesis
from holdfast_chaos.proxy import Proxy
from holdfast_chaos.report import Report, Summary
from holdfast_chaos.rig import Rig
from holdfast_chaos.store_run import FaultlessRun, FaultRun, Plan
from holdfast_chaos.stores import STORES

Tell = Callable[[str], object]
_NEEDED = ("pyspark", "duckdb", "deltalake")
_DISK = 1 << 30


def impossible(faults: frozenset[str]) -> dict[str, str]:
    """Faults that are not possible here, each with the reason."""
    why = Disk.missing()
    return {name: why for name in ("power", "disk") if name in faults and why is not None}


def has_pipeline() -> bool:
    """Whether archiver and ingest can take part."""
    return all(find_spec(name) for name in _NEEDED)


async def run(stores: Sequence[str], plan: Plan, keep: Path | None = None, tell: Tell = print) -> Report:
    """Run on all stores at once. Histories and logs stay in the folder `keep`, if one is given."""
    report = Report(plan.seed, sorted(plan.faults), impossible(plan.faults))
    began = time.monotonic()
    if keep is not None:
        keep.mkdir(parents=True, exist_ok=True)
    report.summaries = list(await asyncio.gather(*(_run_store(store, plan, keep, tell) for store in stores)))
    report.seconds = time.monotonic() - began
    return report


async def _run_store(name: str, plan: Plan, keep: Path | None, tell: Tell) -> Summary:
    summary = Summary(name)
    async with _environment(name, plan, keep) as (rig, nemesis, archive):
        running: FaultRun | FaultlessRun
        if plan.faults:
            running = FaultRun(rig, nemesis, archive, plan, summary)
            await running.run()
            done = f"{summary.killed} kills, {summary.server_kills} of the server"
        else:
            running = FaultlessRun(rig, archive, plan, summary)
            await running.run()
            done = "without a fault"
        tell(f"{name}: {done}; now everything is read")
        await check_run(running, pipeline=plan.pipeline)
    result = "VIOLATED" if not summary.holds else "holds" if summary.conclusive else "proves nothing"
    tell(f"{name}: {result}, {summary.events} events, {summary.seconds:.0f} s, {summary.excused:.0%} excused")
    return summary


@asynccontextmanager
async def _environment(
    name: str, plan: Plan, keep: Path | None
) -> AsyncIterator[tuple[Rig, Nemesis, ArchiveStore]]:
    """An empty store of that kind, with what the faults need around it."""
    async with AsyncExitStack() as stack:
        disk = None
        if plan.faults & {"power", "disk"} and Disk.missing() is None:
            disk = stack.enter_context(Disk(_DISK))
        store = await asyncio.to_thread(STORES[name], None if disk is None else disk.path / "server")
        stack.callback(store.server.stop)
        url = await store.empty()
        proxy = None
        if "network" in plan.faults:
            proxy = await stack.enter_async_context(Proxy("127.0.0.1", store.server.port))
        folder = Path(tempfile.mkdtemp(prefix=f"holdfast-chaos-{name}-", dir=keep))
        if keep is None:
            stack.callback(shutil.rmtree, folder, ignore_errors=True)
        rig = Rig(store, url, folder, process_url=None if proxy is None else proxy.url(url))
        stack.callback(rig.close)
        archive = stack.enter_context(
            archive_store(folder / "archive", s3="s3" in plan.faults and plan.pipeline)
        )
        yield rig, Nemesis(store, proxy, disk, archive.proxy), archive
