"""Tasks: processes of the task layer, which submit tasks and work on them."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any

from holdfast.bus.client import Bus
from holdfast.model.states import LIVE
from holdfast.tasks import Tasks, TaskType
from holdfast.upkeep.taskrecords import WORKERS
from holdfast_chaos.recorder import connect
from holdfast_chaos.roles.upkeep import beating

_FEW, _PAUSE, _RETRIES = 3, 0.05, 2


async def tasks(spec: dict[str, Any]) -> None:
    """Submit tasks and work on them, its own and those of others.

    Specification: url, history, kind, timeout (seconds), prefix, until (a file after which it ends once no
    task is left), and optionally pause (seconds). A task whose data says `fail` is given up at once.
    """
    store, notes = connect(spec)
    end = Path(spec["until"])
    async with Bus([store]) as bus, beating(notes):
        kind = TaskType(timedelta(seconds=spec["timeout"]), max_retries=_RETRIES)
        layer = Tasks(bus, default=kind)
        for number in count():
            for part in range(0 if end.exists() else _FEW):
                data = {"fail": True} if part == 0 else {"n": number}
                await layer.submit(spec["kind"], data, id=f"{spec['prefix']}-{number}-{part}")
            await work(layer, spec["kind"])
            if end.exists() and not await _left(bus, f"gbe.tasks.{spec['kind']}.queue"):
                return
            await asyncio.sleep(spec.get("pause", _PAUSE))


async def _left(bus: Bus, queue: str) -> int:
    """The number of tasks that are not done."""
    stats = await bus.partitions.all[0].backend.channels.consumer_stats(queue, WORKERS)
    return sum(stats.states.get(state, 0) for state in LIVE)


async def work(layer: Tasks, kind: str) -> None:
    """Work on tasks until there are none."""
    while claimed := await layer.claim(kind):
        for task in claimed:
            if "fail" in task.json():
                await layer.fail(task, "no use", terminal=True)
            else:
                await layer.complete(task, {"of": task.id})


async def task_runner(spec: dict[str, Any]) -> None:
    """Submit tasks, or work until there are none.

    Specification: url, history, kind, timeout (seconds), and submit (task id → data), or nothing. A task
    whose data says `fail` is given up at once.
    """
    store, _ = connect(spec)
    timeout = timedelta(seconds=spec["timeout"])
    async with Bus([store]) as bus:
        layer = Tasks(bus, default=TaskType(timeout, max_retries=20))
        for name, data in spec.get("submit", {}).items():
            await layer.submit(spec["kind"], data, id=name)
        if "submit" not in spec:
            await work(layer, spec["kind"])
