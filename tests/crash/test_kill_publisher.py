"""kill -9 of a publisher: a retry with the same ids leaves exactly one event per id."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast_chaos.history import of
from holdfast_chaos.rig import CHANNEL, CONSUMER, Rig

SINGLE, BULK = 1, 250
"""From 200 events on, a batch goes another way: PostgreSQL copies it, Redis takes it in parts."""
BEFORE = 2
"""How many publishes go through before the failpoint strikes."""


async def subscribed(rig: Rig) -> None:
    async with rig.bus("setup") as bus:
        await bus.subscribe(CHANNEL, CONSUMER)


@pytest.mark.dealt
@pytest.mark.parametrize("batch", [SINGLE, BULK])
@pytest.mark.parametrize(("point", "kept"), [("before_commit", BEFORE), ("after_commit", BEFORE + 1)])
async def test_a_publisher_killed_at_its_commit_repeats_itself_to_one_event_per_id(
    rig: Rig, point: str, kept: int, batch: int
) -> None:
    await subscribed(rig)
    spec: dict[str, Any] = {"prefix": "e", "count": BEFORE + 3, "batch": batch}
    await rig.start("publisher", f"publish.{point}=kill:{BEFORE}", **spec).killed()
    first = of(rig.calls(), "publish")
    assert [call.outcome for call in first] == ["ok"] * BEFORE + ["unknown"]
    assert len(await rig.logged()) == kept * batch  # the last one is there, or not, and nobody was told

    await rig.start("publisher", **spec).ended()
    second = of(rig.calls(), "publish", process="01")
    repeats = [receipt["duplicate"] for call in second for _, receipt in call.told()]
    assert repeats == [True] * kept * batch + [False] * (BEFORE + 3 - kept) * batch
    wanted = [f"e-{number}-{part}" for number in range(BEFORE + 3) for part in range(batch)]
    assert sorted(await rig.logged()) == sorted(wanted)
    assert [row.state for row in await rig.rows()] == ["ready"] * len(wanted)
    assert await rig.violations(drained=False) == []
