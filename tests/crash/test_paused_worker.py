"""A worker that was stopped past its lease and resumed: what it answers for others' work is refused."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Awaitable, Callable
from datetime import timedelta

import pytest

import holdfast
from holdfast.bus.client import Bus
from holdfast.model.event import Event
from holdfast.model.job import Job
from holdfast_chaos.history import accepted, of, refused
from holdfast_chaos.rig import CHANNEL, CONSUMER, Rig
from kit import until

EVENTS = 5
OPTIONS = {"lease": "700ms", "max_abandonments": 10, "concurrency": 1, "prefetch": EVENTS}
LEASE = timedelta(minutes=5)
LATE: dict[str, Callable[[Bus, Job], Awaitable[None]]] = {
    "complete": lambda bus, job: bus.finalize(job, success=True),
    "retry": lambda bus, job: bus.finalize(job, success=False, error="late"),
    "bury": lambda bus, job: bus.finalize(job, success=False, error="late", terminal=True),
    "extend": lambda bus, job: bus.extend(job, LEASE),
    "release": lambda bus, job: bus.release(job),
}


@pytest.mark.dealt
async def test_a_worker_stopped_past_its_lease_has_its_stale_answers_refused(
    rig: Rig, record_property: Callable[[str, object], None]
) -> None:
    # CORRECTIONS 001.2: finalize must carry the token.
    go = rig.folder / "go"
    async with rig.bus("publisher") as bus:
        await bus.subscribe(CHANNEL, CONSUMER)
        await bus.publish_many(CHANNEL, [Event({"hold": str(go)}, f"e-{n}") for n in range(EVENTS)])
    stopped = rig.start("worker", consumer=CONSUMER, options=OPTIONS)

    async def all_leased() -> bool:
        begun = of(rig.calls(stopped.name), "seen")
        return bool(begun) and all(row.state == "leased" for row in await rig.rows())

    await until(all_leased)
    stopped.send(signal.SIGSTOP)
    first = {row.job: row.token for row in await rig.rows()}
    go.touch()
    successor = rig.start("worker", consumer=CONSUMER, options=OPTIONS)
    await rig.drained()
    assert {row.token - first[row.job] for row in await rig.rows()} == {1}

    stopped.send(signal.SIGCONT)

    async def all_answered() -> bool:
        return len(refused(rig.calls(stopped.name), "complete")) == EVENTS

    await until(all_answered)
    await stopped.stopped()
    await successor.stopped()
    calls = rig.calls()
    record_property("refused finalizes", len(refused(calls, "complete")))
    assert len(refused(calls, "complete")) == EVENTS > 0
    assert accepted(calls, "complete", process=stopped.name) == []
    assert len(accepted(calls, "complete", process=successor.name)) == EVENTS
    assert await rig.violations() == []


@pytest.mark.parametrize("late", LATE)
async def test_of_two_clients_only_the_one_with_the_newest_token_is_heard(
    rig: Rig, late: str, record_property: Callable[[str, object], None]
) -> None:
    # CORRECTIONS 002.5, without sleeping: the store's time is moved.
    async with rig.bus("slow") as slow, rig.bus("quick") as quick:
        await quick.subscribe(CHANNEL, CONSUMER, lease=LEASE)
        await quick.publish_many(CHANNEL, [Event({"n": n}, f"e-{n}") for n in range(EVENTS)])
        stale = await slow.poll(CHANNEL, CONSUMER, limit=EVENTS)
        await quick.partitions.all[0].backend.advance(LEASE)
        fresh = await quick.poll(CHANNEL, CONSUMER, limit=EVENTS)
        assert len(stale) == len(fresh) == EVENTS
        for job in stale:
            with pytest.raises(holdfast.LeaseLost):
                await LATE[late](slow, job)
        await quick.finalize_many(fresh, success=True)
    calls = rig.calls()
    turned_away = refused(calls, "complete", "retry", "bury", "extend", process="slow")
    record_property("refused finalizes", len(turned_away))
    assert len(turned_away) == EVENTS
    assert accepted(calls, "complete", "retry", "bury", "extend", process="slow") == []
    assert Counter(row.state for row in await rig.rows()) == {"done": EVENTS}
    assert await rig.violations() == []


async def test_a_late_answer_counts_while_nobody_has_a_newer_token(rig: Rig) -> None:
    # CORRECTIONS 002.5, the other side: past the deadline, not yet taken back.
    async with rig.bus("slow") as slow:
        await slow.subscribe(CHANNEL, CONSUMER, lease=LEASE)
        await slow.publish(CHANNEL, {"n": 1}, id="e")
        [job] = await slow.poll(CHANNEL, CONSUMER)
        await slow.partitions.all[0].backend.advance(2 * LEASE)
        await slow.finalize(job, success=True)
    assert len(accepted(rig.calls(), "complete")) == 1
    assert await rig.violations() == []
