"""A process that sweeps, and notes each report, each turn in which another one held the lock, and its loss.

Specification: url, history, owner, keep (by channel: seconds), dead_letters and lock_ttl (seconds), and
optionally pause (seconds between two sweeps) and until: a file that ends it. Without one it ends with its
first report, or when it lost the lock.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Any

from holdfast.chaos.history import History
from holdfast.chaos.recorder import Recorded
from holdfast.model.errors import LockLost
from holdfast.upkeep.rules import Keep, Rules
from holdfast.upkeep.sweeper import Sweeper
from holdfast.upkeep.taskrecords import TaskRecords
from holdfast.wiring import backend


def rules(spec: dict[str, Any]) -> Rules:
    return Rules(
        retention={name: Keep(max_age=timedelta(seconds=age)) for name, age in spec["keep"].items()},
        dead_letters=timedelta(seconds=spec["dead_letters"]),
        lock_ttl=timedelta(seconds=spec["lock_ttl"]),
    )


async def turn(sweeper: Sweeper, notes: History) -> bool:
    """One sweep; whether it is over, one way or the other."""
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


def is_over(spec: dict[str, Any], swept: bool) -> bool:
    return Path(spec["until"]).exists() if "until" in spec else swept


async def main(spec: dict[str, Any]) -> None:
    notes = History(Path(spec["history"]))
    watched: Any = Recorded(backend(spec["url"]), notes)
    await watched.open()
    chores = {"tasks": TaskRecords(watched).settle}
    sweeper = Sweeper(watched, rules(spec), spec["owner"], chores=chores)
    while True:
        over = await turn(sweeper, notes)
        if is_over(spec, over):
            break
        await asyncio.sleep(spec.get("pause", 0.02))
    await watched.close()
