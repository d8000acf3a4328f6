"""kill -9 of workers that hold rows of several jobs: every job ends once, and none is left out."""

from __future__ import annotations

from collections import Counter

import pytest

from holdfast.model.event import Event
from holdfast_chaos.history import of
from holdfast_chaos.rig import CHANNEL, CONSUMER, Rig

pytestmark = pytest.mark.parametrize("store", ["postgres"], indirect=True)
EVENTS = 1100
OPTIONS = {"lease": "700ms", "max_attempts": 1, "max_abandonments": 20, "concurrency": 2, "prefetch": 70}


async def test_killed_workers_leave_no_hole_in_a_row(rig: Rig) -> None:
    async with rig.bus("publisher") as bus:
        await bus.subscribe(CHANNEL, CONSUMER)
        await bus.publish_many(CHANNEL, [Event({"n": n}, f"e-{n}") for n in range(EVENTS)])
    for failpoint in ("after_claim=kill", "after_claim=kill:3", "mid_handler=kill:150", "after_ack=kill:1"):
        await rig.start("worker", f"worker.{failpoint}", consumer=CONSUMER, options=OPTIONS).killed()
    survivors = [rig.start("worker", consumer=CONSUMER, options=OPTIONS) for _ in range(2)]
    await rig.drained()
    for survivor in survivors:
        await survivor.stopped()

    rows = await rig.rows()
    assert Counter(row.state for row in rows) == {"done": EVENTS}
    assert sum(row.abandonments for row in rows) > 0, "no lease was open when a worker was killed"
    assert await rig.violations() == []
    effects = {call.items[0]["id"] for call in of(rig.calls(), "effect")}
    assert len(effects) == EVENTS
