"""kill -9 of a publisher: a retry with the same ids leaves exactly one event per id."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from history import of
from rig import CHANNEL, CONSUMER, Rig

from holdfast import failpoints
from holdfast.model.event import Event
from kit import until

SINGLE, BULK = 1, 250
"""From 200 events on, a batch goes by COPY."""
BEFORE = 2
"""How many publishes go through before the failpoint strikes."""


def logged(rig: Rig) -> list[str]:
    return [event.id for event in rig.evidence().log]


async def subscribed(rig: Rig) -> None:
    async with rig.bus("setup") as bus:
        await bus.subscribe(CHANNEL, CONSUMER)


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
    assert len(logged(rig)) == kept * batch  # the last one is there, or not, and nobody was told

    await rig.start("publisher", **spec).ended()
    second = of(rig.calls(), "publish", process="01")
    repeats = [receipt["duplicate"] for call in second for _, receipt in call.told()]
    assert repeats == [True] * kept * batch + [False] * (BEFORE + 3 - kept) * batch
    wanted = [f"e-{number}-{part}" for number in range(BEFORE + 3) for part in range(batch)]
    assert sorted(logged(rig)) == sorted(wanted)
    assert [row.state for row in rig.evidence().rows] == ["ready"] * len(wanted)
    assert rig.verdict(drained=False) == []


async def test_a_publisher_killed_in_the_middle_of_its_transaction_leaves_nothing(rig: Rig) -> None:
    """It waits for a key that another transaction holds: its jobs are written, its events are not."""
    await subscribed(rig)
    spec: dict[str, Any] = {"prefix": "e", "count": 1, "batch": BULK}
    with psycopg.connect(rig.url) as holder:
        holder.execute("SELECT holdfast.publish(%s, '{}', id => 'e-0-100')", (CHANNEL,))
        publisher = rig.start("publisher", **spec)

        async def waits() -> bool:
            with psycopg.connect(rig.url) as other:
                return other.execute("SELECT count(*) FROM pg_locks WHERE NOT granted").fetchone() == (1,)

        await until(waits)
        publisher.kill()
        holder.rollback()

    async def let_go() -> bool:
        with psycopg.connect(rig.url) as other:
            count = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'holdfast'"
            return other.execute(count).fetchone() == (0,)

    await until(let_go)
    assert logged(rig) == []
    assert rig.evidence().rows == []
    async with rig.bus("reader") as bus:  # nor does it hold the readers of the log back
        await bus.publish(CHANNEL, {"of": "later"}, id="later")
        assert [entry.event.id for entry in await bus.read(CHANNEL)] == ["later"]

    await rig.start("publisher", **spec).ended()
    assert len(logged(rig)) == len(set(logged(rig))) == BULK + 1
    assert rig.verdict(drained=False) == []


async def test_before_the_commit_of_a_bulk_publish_means_inside_its_transaction(rig: Rig) -> None:
    """What the list of failpoints promises: the events are written, the transaction is still open."""
    writing: list[tuple[int] | None] = []

    def look() -> None:
        with psycopg.connect(rig.url) as other:
            count = (
                "SELECT count(*) FROM pg_stat_activity"
                " WHERE datname = current_database() AND backend_xid IS NOT NULL AND state LIKE 'idle in%'"
            )
            writing.append(other.execute(count).fetchone())

    async with rig.bus("publisher") as bus:
        with failpoints.active("publish.before_commit", look):
            await bus.publish_many(CHANNEL, [Event({"of": str(n)}, str(n)) for n in range(BULK)])
    assert writing == [(1,)]
