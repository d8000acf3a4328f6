"""kill -9 of the sweeper at each of its failpoints: another one finishes, and nothing needed is removed."""

from __future__ import annotations

from collections import Counter

import pytest
from sweeping import (
    AUDIT,
    DEAD,
    DONE,
    OLD,
    PAGE,
    STUCK,
    TTL,
    WAITING,
    archived,
    left,
    mess,
    published,
    removed,
    reports,
    store_of,
    summed,
    sweep,
    told,
)

from holdfast.contracts import Backend
from holdfast_chaos.history import of
from holdfast_chaos.rig import CHANNEL, CONSUMER, Rig
from kit import until

POINTS = [f"sweeper.{name}" for name in ("after_lock", "after_stuck", "after_trim", "between_channels")]
POINTS.append("sweeper.before_report")
INSIDE = ["trim.after_record", "trim.mid_purge"]
"""Where a step of trimming is more than one step of the store."""


async def finish(rig: Rig, backend: Backend) -> None:
    """Another sweeper: it waits while the dead one's lock runs, then does what is left to do."""
    heir = sweep(rig)

    async def waits() -> bool:
        return bool(of(rig.calls(heir.name), "busy"))

    await until(waits)
    await backend.advance(TTL)
    assert await heir.ended() == 0
    assert len(of(rig.calls(heir.name), "swept")) == 1


async def killed_and_finished(rig: Rig, points: list[str]) -> None:
    """A new mess for each point, a sweeper that dies there, and one that finishes."""
    async with rig.bus("setup") as bus:
        for number, point in enumerate(points):
            await mess(bus, str(number))
            await archived(rig, store_of(bus))
            await sweep(rig, f"{point}=kill").killed()
            await finish(rig, store_of(bus))


async def check(rig: Rig, turns: int) -> None:
    """Each turn's orders went their way, and of the audit exactly what was archived is gone."""
    async with rig.bus("reader") as bus:
        backend, calls = store_of(bus), rig.calls()
        audit, orders = await left(backend, AUDIT), await left(backend, CHANNEL)
        assert len(audit) == turns * (OLD - PAGE)
        assert len(orders) < turns * (DONE + DEAD + STUCK + WAITING)
        retried = Counter(event["event_id"] for event in await told(backend, "retry"))
        assert set(retried.values()) == {1}, "each stuck job is told of once"
        assert await told(backend, "sweep") == reports(calls)
    rows = await rig.rows()
    states = Counter(row.state for row in rows)
    assert states == {"done": turns * DONE, "purged": turns * DEAD, "ready": turns * (STUCK + WAITING)}
    assert sum(row.abandonments for row in rows) == turns * STUCK == len(retried)
    for channel in (AUDIT, CHANNEL):
        gone = len(published(calls, channel)) - len(audit if channel == AUDIT else orders)
        assert summed(reports(calls), "trimmed")[channel] <= gone, "nothing is counted twice"
    assert summed(reports(calls), "purged")[f"{CHANNEL}/{CONSUMER}"] <= turns * DEAD
    assert await rig.violations(drained=False) == []


@pytest.mark.dealt
async def test_what_a_killed_sweeper_left_undone_is_done_by_the_next(rig: Rig) -> None:
    await killed_and_finished(rig, POINTS)
    await check(rig, len(POINTS))
    calls = rig.calls()
    async with rig.bus("counter") as bus:
        gone = {
            channel: len(published(calls, channel)) - len(await left(store_of(bus), channel))
            for channel in (AUDIT, CHANNEL)
        }
    assert removed(calls) == gone, "every removal was answered for once"


@pytest.mark.parametrize("store", ["nats"], indirect=True)
async def test_a_trim_that_was_killed_half_way_is_finished_by_the_next(rig: Rig) -> None:
    await killed_and_finished(rig, INSIDE)
    await check(rig, len(INSIDE))
