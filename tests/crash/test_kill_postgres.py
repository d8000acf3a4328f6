"""kill -9 of PostgreSQL under load, several times: nothing acked is lost, everything drains."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable

from history import accepted, of
from rig import CHANNEL, CONSUMER, Rig

from holdfast.embedded import Postgres
from kit import until

KILLS, PROGRESS = 3, 60
OPTIONS = {"lease": "2s", "max_attempts": 2, "max_abandonments": 50, "concurrency": 4}


def done(rig: Rig) -> tuple[int, int]:
    """How many events were acked and how many jobs completed, as their callers were told."""
    calls = rig.calls()
    acked = sum(len(call.answers) for call in of(calls, "publish"))
    return acked, len(accepted(calls, "complete"))


async def test_a_server_killed_under_load_loses_nothing_that_was_acked(
    rig: Rig, durable: Postgres, record_property: Callable[[str, object], None]
) -> None:
    async with rig.bus("setup") as bus:
        await bus.subscribe(CHANNEL, CONSUMER, **{k: v for k, v in OPTIONS.items() if k != "concurrency"})
    enough = rig.folder / "enough"
    publishers = [
        rig.start("publisher", prefix="single", batch=1, until=str(enough)),
        rig.start("publisher", prefix="bulk", batch=200, until=str(enough)),
    ]
    workers = [rig.start("worker", consumer=CONSUMER, options=OPTIONS) for _ in range(2)]
    for _ in range(KILLS):
        acked, completed = done(rig)

        async def under_load(acked: int = acked, completed: int = completed) -> bool:
            now = done(rig)
            return now[0] >= acked + PROGRESS and now[1] >= completed + PROGRESS

        await until(under_load, 40)
        await asyncio.to_thread(durable.kill)
        await asyncio.to_thread(durable.start)

    enough.touch()
    assert [await each.ended(30) for each in publishers] == [0, 0]
    await rig.drained(60)
    for worker in workers:
        await worker.stopped()

    calls = rig.calls()
    unknown = [call for call in of(calls, "publish") if call.outcome == "unknown"]
    acked = {item["id"] for call in of(calls, "publish") for item, _ in call.told()}
    record_property("publishes with an unknown outcome", len(unknown))
    assert unknown, "no publish was in flight when the server was killed"
    assert {item["id"] for call in unknown for item in call.items} <= acked, "asked again until it was acked"
    store = rig.evidence()
    assert Counter(event.id for event in store.log) == Counter(acked)
    assert Counter(row.state for row in store.rows) == {"done": len(acked)}
    assert rig.verdict() == []
