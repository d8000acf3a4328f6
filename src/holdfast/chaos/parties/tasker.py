"""A process of the task layer: it submits tasks, or works until there are none.

Specification: url, history, kind, timeout (seconds), and submit (task id → data), or nothing. A task whose
data says `fail` is given up at once.
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

from holdfast.bus.client import Bus
from holdfast.chaos.history import History
from holdfast.chaos.recorder import Recorded
from holdfast.tasks import Tasks, TaskType
from holdfast.wiring import backend


async def work(tasks: Tasks, kind: str) -> None:
    while claimed := await tasks.claim(kind):
        for task in claimed:
            if "fail" in task.json():
                await tasks.fail(task, "no use", terminal=True)
            else:
                await tasks.complete(task, {"of": task.id})


async def main(spec: dict[str, Any]) -> None:
    watched: Any = Recorded(backend(spec["url"]), History(Path(spec["history"])))
    timeout = timedelta(seconds=spec["timeout"])
    async with Bus([watched]) as bus:
        tasks = Tasks(bus, default=TaskType(timeout, max_retries=20))
        for name, data in spec.get("submit", {}).items():
            await tasks.submit(spec["kind"], data, id=name)
        if "submit" not in spec:
            await work(tasks, spec["kind"])
