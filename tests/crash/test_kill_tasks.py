"""kill -9 in the task layer at each of its failpoints: every task ends once, is told once, and says so."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest
from sweeping import TTL, store_of, sweep

from holdfast.bus.client import Bus
from holdfast.contracts import Backend
from holdfast_chaos.rig import Process, Rig
from kit import read_all

KIND, TIMEOUT = "email", 60
QUEUE, TERMINAL = f"gbe.tasks.{KIND}.queue", f"gbe.tasks.{KIND}.terminal"
TASKS: dict[str, Any] = {f"t-{n}": {"fail": True} if n % 3 == 2 else {"n": n} for n in range(12)}
AT_WORK = ["after_claim", "after_result", "after_finalize", "after_terminal"]
AT_SWEEP = ["after_terminal", "before_cursor"]


def tasker(rig: Rig, point: str = "", **spec: Any) -> Process:
    return rig.start(
        "task_runner", f"tasks.{point}=kill" if point else "", kind=KIND, timeout=TIMEOUT, **spec
    )


async def ends(backend: Backend) -> dict[str, list[str]]:
    """What the terminal channel says of each task."""
    told: dict[str, list[str]] = {}
    for entry in await read_all(backend, TERMINAL):
        end = json.loads(entry.event.data)
        told.setdefault(end["task_id"], []).append(end["state"])
    return told


async def state(backend: Backend, task: str) -> str:
    found = await backend.records.get(f"gbe.state.tasks.{KIND}.{task}")
    assert found is not None
    return found.fields["state"]


async def lapse(bus: Bus) -> None:
    """Leases and locks of the dead end."""
    await store_of(bus).advance(TTL)


@pytest.mark.dealt
async def test_every_task_ends_once_whoever_dies_on_the_way(rig: Rig) -> None:
    await tasker(rig, "after_submit", submit=TASKS).killed()
    assert await tasker(rig, submit=TASKS).ended() == 0
    async with rig.bus("clock") as bus:
        for point in AT_WORK:
            await tasker(rig, point).killed()
        await lapse(bus)
        # Some were given up by a worker that could not say so: the sweeper does, and dies at it.
        for point in AT_SWEEP:
            await sweep(rig, f"tasks.{point}=kill").killed()
            await lapse(bus)
        assert await sweep(rig).ended() == 0
        assert await tasker(rig).ended() == 0
        await lapse(bus)
        assert await sweep(rig).ended() == 0

        backend = store_of(bus)
        wanted = {task: "failed" if "fail" in data else "completed" for task, data in TASKS.items()}
        assert await ends(backend) == {task: [end] for task, end in wanted.items()}
        assert {task: await state(backend, task) for task in TASKS} == wanted
    rows = [row for row in await rig.rows() if row.channel == QUEUE]
    assert Counter(row.state for row in rows) == {"done": 8, "purged": 4}
    assert await rig.violations() == []
