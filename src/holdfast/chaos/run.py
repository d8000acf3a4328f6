"""A run: a siege of each kind of store, side by side, and one report of them all."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from importlib.util import find_spec
from pathlib import Path

from holdfast.chaos.account import Account
from holdfast.chaos.cold import Cold, cold_storage
from holdfast.chaos.disk import Disk
from holdfast.chaos.inquest import inquire
from holdfast.chaos.nemesis import Nemesis
from holdfast.chaos.proxy import Proxy
from holdfast.chaos.report import Report
from holdfast.chaos.rig import Rig
from holdfast.chaos.siege import Plan, Siege
from holdfast.chaos.stores import STORES
from holdfast.chaos.undisturbed import Undisturbed

Tell = Callable[[str], object]
_NEEDED = ("pyspark", "duckdb", "deltalake")
_DISK = 1 << 30


def impossible(faults: frozenset[str]) -> dict[str, str]:
    """Faults that cannot be dealt here, each with the reason."""
    why = Disk.missing()
    return {name: why for name in ("power", "disk") if name in faults and why is not None}


def has_pipeline() -> bool:
    """Whether archiver and ingest can take part."""
    return all(find_spec(name) for name in _NEEDED)


async def run(stores: Sequence[str], plan: Plan, keep: Path | None = None, tell: Tell = print) -> Report:
    """Besiege the stores, all at once. `keep` is a folder for histories and logs, kept for whoever looks."""
    report = Report(plan.seed, sorted(plan.faults), impossible(plan.faults))
    began = time.monotonic()
    if keep is not None:
        keep.mkdir(parents=True, exist_ok=True)
    report.accounts = list(await asyncio.gather(*(_besiege(store, plan, keep, tell) for store in stores)))
    report.seconds = time.monotonic() - began
    return report


async def _besiege(name: str, plan: Plan, keep: Path | None, tell: Tell) -> Account:
    account = Account(name)
    async with _standing(name, plan, keep) as (rig, nemesis, cold):
        siege: Siege | Undisturbed
        if plan.faults:
            siege = Siege(rig, nemesis, cold, plan, account)
            await siege.run()
            done = f"{account.killed} kills, {account.server_kills} of the server"
        else:
            siege = Undisturbed(rig, cold, plan, account)
            await siege.run()
            done = "without a fault"
        tell(f"{name}: {done}; now everything is read")
        await inquire(siege, pipeline=plan.pipeline)
    verdict = "VIOLATED" if not account.holds else "holds" if account.conclusive else "proves nothing"
    tell(
        f"{name}: {verdict}, {account.events} events, {account.seconds:.0f} s, {account.excused:.0%} excused"
    )
    return account


@asynccontextmanager
async def _standing(name: str, plan: Plan, keep: Path | None) -> AsyncIterator[tuple[Rig, Nemesis, Cold]]:
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
        rig = Rig(store, url, folder, way=None if proxy is None else proxy.url(url))
        stack.callback(rig.close)
        cold = stack.enter_context(cold_storage(folder / "cold", s3="s3" in plan.faults and plan.pipeline))
        yield rig, Nemesis(store, proxy, disk, cold.way), cold
