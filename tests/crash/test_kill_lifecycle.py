"""kill -9 of whoever keeps time, between and within the two phases: another one finishes the work."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta

import pytest

from holdfast.model.event import Event
from holdfast_chaos.rig import CHANNEL, Rig
from holdfast_chaos.stores.nats import NatsStore

NOW, LATER, CLAIMED = 20, 10, 5
States = dict[tuple[str, str, int], int]
"""How many jobs of a consumer are in a state with so many abandonments."""

BEFORE: States = {
    ("patient", "ready", 0): NOW - CLAIMED,
    ("patient", "leased", 0): CLAIMED,
    ("patient", "scheduled", 0): LATER,
    ("strict", "ready", 0): NOW - CLAIMED,
    ("strict", "leased", 0): CLAIMED,
    ("strict", "scheduled", 0): LATER,
    ("hasty", "ready", 0): NOW,
    ("hasty", "scheduled", 0): LATER,
}
PROMOTED: States = {
    ("patient", "ready", 0): NOW - CLAIMED + LATER,
    ("patient", "leased", 0): CLAIMED,
    ("strict", "ready", 0): NOW - CLAIMED + LATER,
    ("strict", "leased", 0): CLAIMED,
    ("hasty", "ready", 0): NOW,
    ("hasty", "scheduled", 0): LATER,
}
AFTER: States = {
    ("patient", "ready", 0): NOW - CLAIMED + LATER,
    ("patient", "ready", 1): CLAIMED,
    ("strict", "ready", 0): NOW - CLAIMED + LATER,
    ("strict", "dead", 1): CLAIMED,
    ("hasty", "dead", 0): NOW + LATER,
}


async def states(rig: Rig) -> States:
    return Counter((row.consumer, row.state, row.abandonments) for row in await rig.rows())


async def everything_due(rig: Rig) -> None:
    """Overdue leases with and without budget, due schedules, and events that expired while they waited."""
    minute = timedelta(minutes=1)
    async with rig.bus("setup") as bus:
        await bus.subscribe(CHANNEL, "patient", lease=minute)
        await bus.subscribe(CHANNEL, "strict", lease=minute, max_abandonments=1)
        await bus.subscribe(CHANNEL, "hasty", expires_after=minute)
        backend = bus.partitions.all[0].backend
        await bus.publish_many(CHANNEL, [Event({"n": n}, f"now-{n}") for n in range(NOW)])
        soon = await backend.now() + minute / 2
        await bus.publish_many(CHANNEL, [Event({"n": n}, f"later-{n}") for n in range(LATER)], at=soon)
        for consumer in ("patient", "strict"):
            assert len(await bus.poll(CHANNEL, consumer, limit=CLAIMED)) == CLAIMED
        await backend.advance(2 * minute)


@pytest.mark.dealt
@pytest.mark.parametrize(("point", "found"), [("after_read", BEFORE), ("mid_apply", PROMOTED)])
async def test_what_a_killed_lifecycle_left_undone_is_done_by_the_next(
    rig: Rig, point: str, found: States
) -> None:
    await everything_due(rig)
    assert await states(rig) == BEFORE
    await rig.start("upkeep", f"lifecycle.{point}=kill").killed()
    assert await states(rig) == found
    assert await rig.start("upkeep").ended() == 0
    assert await states(rig) == AFTER
    assert {row.reason for row in await rig.rows() if row.state == "dead"} == {"crash_loop", "expired"}
    assert await rig.violations(drained=False) == []


@pytest.mark.dealt
async def test_a_lifecycle_that_read_before_another_one_applied_changes_nothing_more(rig: Rig) -> None:
    # CORRECTIONS 002.4: phase two must check again.
    await everything_due(rig)
    slow = rig.start("upkeep", "lifecycle.after_read=stop")
    await slow.stopped_itself()
    assert await rig.start("upkeep").ended() == 0
    assert await states(rig) == AFTER
    rows = await rig.rows()
    assert await slow.continued() == 0
    assert await states(rig) == AFTER
    assert await rig.rows() == rows
    assert await rig.violations(drained=False) == []


@pytest.mark.dealt
async def test_a_backfill_whose_worker_was_killed_goes_on_where_it_stood(rig: Rig) -> None:
    events = 1200
    # Only special events are made jobs before somebody claims them.
    # On NATS the read of what is due makes them, a page at a time.
    point = "lifecycle.after_read" if isinstance(rig.store, NatsStore) else "subscribe.mid_backfill"
    async with rig.bus("publisher") as bus:
        old = [Event({"n": n}, f"old-{n}") for n in range(events)]
        await bus.publish_many(CHANNEL, old, priority=1)
        await bus.subscribe(CHANNEL, "late", start="earliest")
        await rig.start("upkeep", f"{point}=kill").killed()
        [(kind, made)] = (await states(rig)).items()
        assert kind == ("late", "ready", 0)
        assert made == events
        await bus.publish_many(CHANNEL, [Event({"n": n}, f"new-{n}") for n in range(10)])
    assert await rig.start("upkeep").ended() == 0
    assert await states(rig) == {("late", "ready", 0): events + 10}
    assert await rig.violations(drained=False) == []
