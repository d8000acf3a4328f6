"""A process of the task layer: it submits tasks and works on them, its own and those of others.

Specification: url, history, kind, timeout (seconds), prefix, until (a file after which it ends once no task
is left), and optionally pause (seconds). A task whose data says `fail` is given up at once.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any

from holdfast.bus.client import Bus
from holdfast.chaos.parties.heartbeat import beating
from holdfast.chaos.parties.opening import opened
from holdfast.chaos.parties.tasker import work
from holdfast.model.job import LIVE
from holdfast.tasks import Tasks, TaskType
from holdfast.upkeep.taskrecords import WORKERS

_FEW, _PAUSE, _RETRIES = 3, 0.05, 2


async def main(spec: dict[str, Any]) -> None:
    store, notes = opened(spec)
    end = Path(spec["until"])
    async with Bus([store]) as bus, beating(notes):
        kind = TaskType(timedelta(seconds=spec["timeout"]), max_retries=_RETRIES)
        tasks = Tasks(bus, default=kind)
        for number in count():
            for part in range(0 if end.exists() else _FEW):
                data = {"fail": True} if part == 0 else {"n": number}
                await tasks.submit(spec["kind"], data, id=f"{spec['prefix']}-{number}-{part}")
            await work(tasks, spec["kind"])
            if end.exists() and not await _left(bus, f"gbe.tasks.{spec['kind']}.queue"):
                return
            await asyncio.sleep(spec.get("pause", _PAUSE))


async def _left(bus: Bus, queue: str) -> int:
    """Tasks that somebody still has to do."""
    stats = await bus.partitions.all[0].backend.consumer_stats(queue, WORKERS)
    return sum(stats.states.get(state, 0) for state in LIVE)
