"""Upkeep: processes that sweep, keep time, and tell a slow machine from a slow store."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import holdfast
from holdfast.contracts import Backend
from holdfast.model.errors import LockLost
from holdfast.upkeep.rules import Keep, Rules
from holdfast.upkeep.sweeper import Sweeper
from holdfast.upkeep.taskrecords import TaskRecords
from holdfast.wiring import backend
from holdfast_chaos.history import History
from holdfast_chaos.recorder import connect


def rules_of(spec: dict[str, Any]) -> Rules:
    return Rules(
        retention={name: Keep(max_age=timedelta(seconds=age)) for name, age in spec["keep"].items()},
        dead_letters=timedelta(seconds=spec["dead_letters"]),
        lock_ttl=timedelta(seconds=spec["lock_ttl"]),
    )


async def sweep_once(sweeper: Sweeper, notes: History) -> bool:
    """Sweep once. Returns whether it is over, one way or the other."""
    try:
        report = await sweeper.run_once()
    except LockLost as error:
        notes.happened("lost", {"message": f"{type(error).__name__}: {error}"})
        return True
    if report is None:
        notes.happened("busy", {})
        return False
    notes.happened("swept", report.model_dump(mode="json"))
    return True


async def sweeper(spec: dict[str, Any]) -> None:
    """Sweep, and note each report, each time that another one held the lock, and its loss.

    Specification: url, history, owner, keep (by channel: seconds), dead_letters and lock_ttl (seconds), and
    optionally pause (seconds between two sweeps) and until: a file that ends it. Without one it ends with its
    first report, or when it lost the lock.
    """
    store, notes = connect(spec)
    await store.open()
    chores = {"tasks": TaskRecords(store).settle}
    sweeper = Sweeper(store, rules_of(spec), spec["owner"], chores=chores)
    while True:
        over = await sweep_once(sweeper, notes)
        if Path(spec["until"]).exists() if "until" in spec else over:
            break
        await asyncio.sleep(spec.get("pause", 0.02))
    await store.close()


async def upkeep(spec: dict[str, Any]) -> None:
    """Step the lifecycle until nothing is due any more. Specification: url, history."""
    async with holdfast.connect(spec["url"]) as bus:
        [partition] = bus.partitions.all
        while (await partition.step()).total:
            pass


_BEAT, _READ, _WORK = 0.2, 1.0, 0.005


async def read_clock(store: Backend, notes: History) -> None:
    """Note the store's time, with the moment at which it was so."""
    asked = time.monotonic_ns()
    now = await store.now()
    notes.happened("clock", {"now": now.isoformat(), "at": (asked + time.monotonic_ns()) // 2})


def slowness() -> float:
    """How many times longer than on an idle machine a little work takes."""
    began, worked = time.monotonic(), time.process_time()
    while (done := time.process_time() - worked) < _WORK:
        pass
    return (time.monotonic() - began) / done


@asynccontextmanager
async def beating(notes: History) -> AsyncIterator[None]:
    """Note five times in a second that this process runs."""

    async def beat() -> None:
        while True:
            notes.happened("beat", {"slow": 1.0})
            await asyncio.sleep(_BEAT)

    task = asyncio.create_task(beat())
    try:
        yield
    finally:
        task.cancel()


async def heartbeat(spec: dict[str, Any]) -> None:
    """Tell a standstill of the machine from one of the store.

    Beats five times in a second, with a little CPU and a write to the disk, and apart from that reads the
    store's clock. Specification: url, history, drained (a file that ends it).
    """
    notes, store, end = History(Path(spec["history"])), backend(spec["url"]), Path(spec["drained"])
    await store.open()

    async def beat() -> None:
        while not end.exists():
            await asyncio.to_thread(notes.sync)
            notes.happened("beat", {"slow": slowness()})
            await asyncio.sleep(_BEAT)

    async def read() -> None:
        while not end.exists():
            await read_clock(store, notes)
            await asyncio.sleep(_READ)

    await asyncio.gather(beat(), read())
    await store.close()
