"""kill -9 of a worker at each of its failpoints: nothing is lost, and nothing is completed twice."""

from __future__ import annotations

from collections import Counter

import pytest

from holdfast.model.event import Event
from holdfast_chaos.history import of
from holdfast_chaos.rig import CHANNEL, CONSUMER, Process, Rig
from kit import until

EVENTS = 30
OPTIONS = {"lease": "700ms", "max_attempts": 1, "max_abandonments": 10, "concurrency": 2, "prefetch": 6}


def work(rig: Rig, failpoints: str = "", **options: object) -> Process:
    return rig.start("worker", failpoints, consumer=CONSUMER, options=OPTIONS | options)


async def published(rig: Rig, *events: Event) -> None:
    async with rig.bus("publisher") as bus:
        await bus.subscribe(CHANNEL, CONSUMER)
        await bus.publish_many(CHANNEL, list(events))


@pytest.mark.dealt
@pytest.mark.parametrize("point", ["after_claim", "mid_handler", "after_effect", "after_ack"])
async def test_a_killed_worker_loses_nothing_and_completes_nothing_twice(rig: Rig, point: str) -> None:
    # max_attempts is 1: if a kill were counted as an attempt, its jobs would be dead.
    await published(rig, *(Event({"n": n}, f"e-{n}") for n in range(EVENTS)))
    for skipped in (0, 2):
        await work(rig, f"worker.{point}=kill:{skipped}").killed()
    survivor = work(rig)
    await rig.drained()
    await survivor.stopped()

    rows = await rig.rows()
    assert Counter(row.state for row in rows) == {"done": EVENTS}
    assert {row.attempts for row in rows} == {1}
    if point != "after_ack":  # there, everything in the worker's hands may just have been settled
        assert sum(row.abandonments for row in rows) > 0, "no lease was open when the worker was killed"
    assert await rig.violations() == []
    effects = Counter(call.items[0]["id"] for call in of(rig.calls(), "effect"))
    assert len(effects) == EVENTS
    if point == "after_effect":  # the effect came again; that is what at-least-once means
        assert max(effects.values()) > 1
    if point == "after_ack":
        first = of(rig.calls(), "complete", process="00")
        done = {item["id"] for call in first for item in call.items}
        assert done
        assert {effects[name] for name in done} == {1}, "what was acked never runs again"


@pytest.mark.dealt
async def test_every_kill_counts_as_one_abandonment_of_the_job_that_ran(rig: Rig) -> None:
    await published(rig, Event({"n": 1}, "only"))
    first = 0
    for kills in (1, 2):
        await work(rig, "worker.mid_handler=kill").killed()

        async def taken_back(kills: int = kills) -> bool:
            async with rig.bus(f"upkeep-{kills}") as bus:
                await bus.partitions.all[0].step()
            nonlocal first
            [row] = await rig.rows()
            first = first or row.token
            return (row.state, row.attempts, row.abandonments) == ("ready", 0, kills)

        await until(taken_back)
    survivor = work(rig)
    await rig.drained()
    await survivor.stopped()
    [row] = await rig.rows()
    assert (row.state, row.attempts, row.abandonments, row.token) == ("done", 1, 2, first + 2)
    assert await rig.violations() == []


@pytest.mark.dealt
async def test_a_poison_event_is_dead_after_exactly_its_abandonments(rig: Rig) -> None:
    # CORRECTIONS 001.4: the event that kills its worker must not loop forever.
    await published(rig, Event({"poison": True}, "poison"))
    kills = 0
    while kills == 0 or (await rig.rows())[0].live:
        worker = work(rig, max_abandonments=3)

        async def over(worker: Process = worker) -> bool:
            return worker.code is not None or (await rig.rows())[0].state == "dead"

        await until(over)
        if worker.code is None:
            await worker.stopped()
        else:
            await worker.killed()
            kills += 1
    assert kills == 3
    [row] = await rig.rows()
    assert (row.state, row.reason, row.attempts, row.abandonments) == ("dead", "crash_loop", 0, 3)
    assert (await rig.final_state()).terms[CHANNEL, CONSUMER].counted["dead:crash_loop"] == 1

    async with rig.bus("later") as bus:
        await bus.publish(CHANNEL, {"n": 1}, id="innocent")
    survivor = work(rig, max_abandonments=3)
    await rig.drained()
    await survivor.stopped()
    assert Counter(row.state for row in await rig.rows()) == {"dead": 1, "done": 1}
    assert await rig.violations() == []
