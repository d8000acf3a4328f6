"""kill -9 of the server under load, several times: nothing acked is lost, everything drains."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable

from holdfast_chaos.history import of
from holdfast_chaos.rig import CHANNEL, CONSUMER, Rig
from kit import until

KILLS, PROGRESS = 2, 30
OPTIONS = {"lease": "2s", "max_attempts": 2, "max_abandonments": 50, "concurrency": 4}


def progress(rig: Rig) -> Counter[str]:
    """How many events each publisher was acked, and how many completions each worker."""
    calls = rig.calls()
    acked = [call.process for call in of(calls, "publish") for _ in call.answers]
    completed = [call.process for call in of(calls, "complete") for yes in call.answers if yes]
    return Counter([*acked, *completed])


async def under_load(rig: Rig, parties: list[str]) -> None:
    """Wait until everybody has got on since now, so that a kill interrupts all of them."""
    before = progress(rig)

    async def all_at_work() -> bool:
        await asyncio.sleep(0.1)  # histories grow long: do not read them all the time
        now = progress(rig)
        return all(now[each] >= before[each] + PROGRESS for each in parties)

    await until(all_at_work, 40)


async def test_a_server_killed_under_load_loses_nothing_that_was_acked(
    rig: Rig, record_property: Callable[[str, object], None]
) -> None:
    async with rig.bus("setup") as bus:
        await bus.subscribe(CHANNEL, CONSUMER)
    enough = rig.folder / "enough"
    publishers = [
        rig.start("publisher", prefix="single", batch=1, until=str(enough)),
        rig.start("publisher", prefix="bulk", batch=200, until=str(enough)),
    ]
    workers = [rig.start("worker", consumer=CONSUMER, options=OPTIONS) for _ in range(2)]
    for _ in range(KILLS):
        await under_load(rig, [each.name for each in (*publishers, *workers)])
        await asyncio.to_thread(rig.store.server.kill)
        await asyncio.to_thread(rig.store.server.start)

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
    store = await rig.final_state()
    assert Counter(event.id for event in store.log) == Counter(acked)
    assert Counter(row.state for row in store.rows) == {"done": len(acked)}
    assert await rig.violations() == []
