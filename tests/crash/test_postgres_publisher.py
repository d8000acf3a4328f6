"""kill -9 of a publisher in the middle of its transaction, which only PostgreSQL has."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from holdfast import failpoints
from holdfast.model.event import Event
from holdfast_chaos.rig import CHANNEL, CONSUMER, Rig
from kit import until

BULK = 250
"""From 200 events on, a batch goes by COPY."""
pytestmark = pytest.mark.parametrize("store", ["postgres"], indirect=True)


async def test_a_publisher_killed_in_the_middle_of_its_transaction_leaves_nothing(rig: Rig) -> None:
    """It waits for a key that another transaction holds: its jobs are written, its events are not."""
    async with rig.bus("setup") as bus:
        await bus.subscribe(CHANNEL, CONSUMER)
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
    assert await rig.logged() == []
    assert await rig.rows() == []
    async with rig.bus("reader") as bus:  # nor does it hold the readers of the log back
        await bus.publish(CHANNEL, {"of": "later"}, id="later")
        assert [entry.event.id for entry in await bus.read(CHANNEL)] == ["later"]

    await rig.start("publisher", **spec).ended()
    assert len(await rig.logged()) == len(set(await rig.logged())) == BULK + 1
    assert await rig.violations(drained=False) == []


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
