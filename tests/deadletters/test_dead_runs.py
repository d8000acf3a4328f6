"""Runs: killed, cancelled, slowed by a rate or stopped by a canary, each item is done and counted once."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from dead_kit import BILLING, LAPSE, audited, cut_off, dead, die, found, later, states, store, subscribe, work

import holdfast
from holdfast import failpoints
from holdfast.deadletters import (
    Canary,
    DeadLetters,
    Filter,
    Operation,
    OperationOptions,
    Operations,
    Request,
    Runner,
)
from holdfast.deadletters.runner import RunClock
from holdfast.failpoints import VARIABLE
from holdfast.model.errors import LockLost, Overloaded, Unavailable
from holdfast.model.event import Event
from holdfast.model.upkeep import StateRecord
from kit import CHANNEL, CONSUMER, until

RESUMER = Path(__file__).parent / "processes" / "resumer.py"
IDS = [f"o-{number:02}" for number in range(10)]


async def killed(url: str, points: str) -> None:
    """A runner in a process of its own, which must die by SIGKILL at one of its failpoints."""
    assert await ran(url, points) == -signal.SIGKILL


async def ran(url: str, points: str = "") -> int:
    process = await asyncio.create_subprocess_exec(
        sys.executable, RESUMER, url, "another", env=os.environ | {VARIABLE: points}, stdin=subprocess.DEVNULL
    )
    return await process.wait()


POINTS = {
    "purge": ["after_lock=kill", "after_intent=kill:1", "after_act=kill", "before_end=kill"],
    "redrive": ["after_intent=kill:1", "after_act=kill"],
}


@pytest.mark.parametrize("kind", POINTS)
async def test_a_killed_run_is_resumed_and_counts_each_once(
    bus: holdfast.Bus, runner: Runner, database: str, kind: str
) -> None:
    # CORRECTIONS 004.9
    await subscribe(bus)
    await die(bus, *IDS)
    asked = await runner.operations.ask(Request(kind, BILLING), "ann")  # type: ignore[arg-type]
    for point in POINTS[kind]:
        await killed(database, f"operation.{point}")
        assert (await runner.operations.show(asked.id)).state == "running"
        await later(bus, LAPSE)
    assert await ran(database) == 0
    done = await runner.operations.show(asked.id)
    assert (done.state, done.outcome) == ("done", "10 of 10 done, 0 skipped")
    assert done.progress.looked_at == 10
    if kind == "purge":
        assert await states(bus) == {"purged": 10}
    else:
        assert sorted(await work(bus)) == IDS
    assert await runner.operations.letters.verify() == []
    told = [each["outcome"].partition(":")[0] for each in await audited(bus)]
    assert told == ["asked", "done"]


async def test_what_died_again_after_a_crash_is_not_revived_twice(bus: holdfast.Bus, runner: Runner) -> None:
    await subscribe(bus)
    await die(bus, *IDS)
    items = tuple(item.id for item in await found(runner.operations.letters))
    asked = await runner.operations.ask(Request("requeue", items=items), "ann")
    with failpoints.active("operation.after_act", cut_off), pytest.raises(Unavailable):
        await runner.run(asked.id)
    assert len(await work(bus, bad=tuple(IDS))) == 3
    await later(bus, LAPSE)
    assert await runner.resume_all() == 1
    done = await runner.operations.show(asked.id)
    assert (done.progress.done, done.progress.skipped) == (10, 0)
    assert (await states(bus))["dead"] == 3
    assert len(await work(bus)) == 7


async def test_what_others_did_to_an_unfinished_chunk_is_skipped(bus: holdfast.Bus, runner: Runner) -> None:
    await subscribe(bus)
    await die(bus, *IDS)
    asked = await runner.operations.ask(Request("purge", BILLING), "ann")
    with failpoints.active("operation.after_intent", cut_off), pytest.raises(Unavailable):
        await runner.run(asked.id)
    [first, *_] = (await runner.operations.show(asked.id)).checkpoint.pending
    assert await store(bus).deadletters.revive(CHANNEL, CONSUMER, [first.rpartition(":")[2]]) == [True]
    assert await runner.resume_all() == 1
    done = await runner.operations.show(asked.id)
    assert (done.progress.done, done.progress.skipped) == (9, 1)


@dataclass
class Fake:
    """A clock that a wait moves, and what was seen at which time."""

    time: float = 0.0
    seen: list[tuple[float, int]] = field(default_factory=list)

    @property
    def clock(self) -> RunClock:
        return RunClock(lambda: self.time, self.sleep)

    async def sleep(self, seconds: float) -> None:
        self.time += seconds

    def tell(self, operation: Operation) -> None:
        self.seen.append((self.time, operation.progress.done + len(operation.checkpoint.pending)))


async def test_a_runner_from_the_past_changes_nothing_of_the_record(
    bus: holdfast.Bus, runner: Runner
) -> None:
    await subscribe(bus)
    await die(bus, *IDS)
    asked = await runner.operations.ask(Request("purge", BILLING, options=OperationOptions(rate=3)), "ann")
    entered, go_on, frozen = asyncio.Event(), asyncio.Event(), Fake()

    async def freeze(seconds: float) -> None:
        entered.set()
        await go_on.wait()
        await frozen.sleep(seconds)

    # Its rate makes it wait between two chunks: there it stays until another one has done the work.
    slow = Runner(runner.operations, "slow", clock=RunClock(lambda: frozen.time, freeze))
    past = asyncio.create_task(slow.run(asked.id))
    await entered.wait()
    await later(bus, LAPSE)
    done = await Runner(runner.operations, "fast", clock=Fake().clock).run(asked.id)
    assert done is not None
    assert (done.state, done.progress.done, done.progress.looked_at) == ("done", 10, 10)
    go_on.set()
    with pytest.raises(LockLost):
        await past
    assert await runner.operations.show(asked.id) == done


@pytest.mark.parametrize(("rate", "least"), [(1.0, 9.0), (4.0, 2.0), (0.5, 18.0)])
async def test_a_rate_is_kept(bus: holdfast.Bus, letters: DeadLetters, rate: float, least: float) -> None:
    await subscribe(bus)
    await die(bus, *IDS)
    fake = Fake()
    runner = Runner(Operations(letters), "tester", clock=fake.clock)
    asked = await runner.operations.ask(
        Request("redrive", BILLING, options=OperationOptions(rate=rate)), "ann"
    )
    done = await runner.follow(asked.id, on_progress=fake.tell)
    assert (done.state, done.progress.done) == ("done", 10)
    assert least <= fake.time <= 10 / rate
    burst = max(1, int(rate))
    assert all(count <= burst + rate * time + 1e-6 for time, count in fake.seen)


async def test_a_cancel_keeps_what_was_done_and_a_resume_does_the_rest(
    each: holdfast.Bus,
) -> None:
    operations = Operations(DeadLetters(each))
    await subscribe(each)
    await die(each, *IDS)
    asked = await operations.ask(Request("purge", BILLING, options=OperationOptions(rate=3)), "ann")

    async def cancel_at_the_first_wait(_: float) -> None:
        if (await operations.show(asked.id)).active:
            await operations.cancel(asked.id, "bob")
        clock.time += 1.0

    clock = Fake()
    runner = Runner(operations, "tester", clock=RunClock(lambda: clock.time, cancel_at_the_first_wait))
    cancelled = await runner.follow(asked.id)
    assert (cancelled.state, cancelled.outcome) == ("cancelled", "cancelled by bob; 3 of 10 done, 0 skipped")
    assert await operations.show(asked.id) == cancelled
    assert await dead(each) == 7
    assert await runner.resume_all() == 0
    await operations.resume(asked.id, "ann")
    done = await Runner(operations, "tester", clock=Fake().clock).follow(asked.id)
    assert (done.state, done.outcome) == ("done", "10 of 10 done, 0 skipped")
    assert await states(each) == {"purged": 10}


async def test_a_stop_between_two_chunks_leaves_it_cancelled(bus: holdfast.Bus, runner: Runner) -> None:
    await subscribe(bus)
    await die(bus, *IDS)
    asked = await runner.operations.ask(Request("purge", BILLING), "ann")
    stop = asyncio.Event()
    stopped = await runner.follow(
        asked.id, stop=stop, on_progress=lambda told: stop.set() if told.progress.done >= 3 else None
    )
    assert stopped.state == "cancelled"
    assert await dead(bus) == 10 - stopped.progress.done > 0
    await runner.operations.resume(asked.id, "ann")
    done = await runner.follow(asked.id)
    assert (done.progress.done, await dead(bus)) == (10, 0)


@dataclass
class Workers:
    """A clock whose waits let workers work: everything succeeds but what is `bad`."""

    bus: holdfast.Bus
    bad: tuple[str, ...] = ()
    worked: list[list[str]] = field(default_factory=list)

    @property
    def clock(self) -> RunClock:
        return RunClock(lambda: float(len(self.worked)), self.sleep)

    async def sleep(self, _: float) -> None:
        self.worked.append(await work(self.bus, bad=self.bad))


CANARY = OperationOptions(canary=Canary(4, share=0.75))


async def test_a_canary_that_does_well_lets_the_rest_follow(each: holdfast.Bus) -> None:
    await subscribe(each)
    await die(each, *IDS)
    workers = Workers(each, bad=(IDS[-1],))
    runner = Runner(Operations(DeadLetters(each)), "tester", clock=workers.clock)
    done = await runner.do(Request("redrive", BILLING, options=CANARY), "ann")
    assert (done.state, done.progress.done) == ("done", 10)
    assert [len(batch) for batch in workers.worked] == [4], "the rest waited for the canary"
    assert len(await work(each)) == 6


async def test_a_canary_that_does_badly_stops_it_and_says_why(
    bus: holdfast.Bus, letters: DeadLetters
) -> None:
    await subscribe(bus)
    await die(bus, *IDS)
    workers = Workers(bus, bad=tuple(IDS[-2:]))
    runner = Runner(Operations(letters), "tester", clock=workers.clock)
    stopped = await runner.do(Request("redrive", BILLING, options=CANARY), "ann")
    assert stopped.state == "stopped"
    assert stopped.outcome == "2 of 4 in the canary succeeded, 75% were asked for; 4 of 10 done, 0 skipped"
    assert await dead(bus) == 8
    assert await runner.resume_all() == 0
    # Somebody decides that it shall go on all the same.
    await runner.operations.resume(stopped.id, "bob")
    done = await runner.follow(stopped.id)
    assert (done.state, done.progress.done) == ("done", 10)


async def test_a_canary_that_nobody_works_on_ends_in_time(bus: holdfast.Bus, letters: DeadLetters) -> None:
    await subscribe(bus)
    await die(bus, *IDS)

    fake = Fake()

    async def wait(seconds: float) -> None:
        await later(bus, timedelta(minutes=1))
        await fake.sleep(seconds)

    runner = Runner(Operations(letters), "tester", clock=RunClock(lambda: fake.time, wait))
    stopped = await runner.do(Request("redrive", BILLING, options=CANARY), "ann")
    assert stopped.state == "stopped"
    assert "4 had not ended in time" in stopped.outcome
    assert (stopped.ended_at or stopped.created_at) - stopped.created_at >= timedelta(minutes=10)


async def test_a_run_killed_while_its_canary_is_out_goes_on_waiting(
    bus: holdfast.Bus, runner: Runner, database: str
) -> None:
    await subscribe(bus)
    await die(bus, *IDS)
    asked = await runner.operations.ask(Request("redrive", BILLING, options=CANARY), "ann")
    await killed(database, "operation.after_act=kill:1")  # three, then one: the canary is out
    await later(bus, LAPSE)
    assert (await states(bus))["ready"] == 4
    workers = Workers(bus)
    done = await Runner(runner.operations, "next", clock=workers.clock).follow(asked.id)
    assert (done.state, done.progress.done, done.progress.looked_at) == ("done", 10, 10)
    assert [len(batch) for batch in workers.worked] == [4]


async def test_a_server_runs_a_few_at_once(bus: holdfast.Bus, runner: Runner) -> None:
    await subscribe(bus)
    await die(bus, *IDS)
    waiting = await runner.operations.ask(Request("redrive", BILLING, options=CANARY), "ann")
    serving = asyncio.create_task(runner.serve())
    await until(lambda: _stands(runner, waiting.id, "running"))
    quick = await runner.operations.ask(Request("purge", BILLING), "bob")
    await until(lambda: _stands(runner, quick.id, "done"))
    assert await _stands(runner, waiting.id, "running"), "its canary is still out"
    serving.cancel()
    await asyncio.gather(serving, return_exceptions=True)
    assert await _stands(runner, waiting.id, "running"), "whoever looks next goes on"
    workers = Workers(bus)
    done = await Runner(runner.operations, "next", clock=workers.clock).follow(waiting.id)
    assert (done.state, done.progress.done) == ("done", 4)


async def test_one_that_is_resumed_before_its_run_has_noticed_the_cancel_is_found(
    bus: holdfast.Bus, runner: Runner
) -> None:
    operations = runner.operations
    asked = await operations.ask(Request("redrive", BILLING), "ann")
    mark = await operations.mark_of(asked.id)  # a run holds it until its end
    await operations.cancel(asked.id, "ann")
    await operations.resume(asked.id, "ann")
    await operations.unmark(mark)
    assert asked.id in {each.id for each in await operations.marks()}


async def _at_most(runner: Runner, number: int) -> bool:
    return runner.running <= number


async def test_nobody_keeps_the_operations_of_others_waiting(bus: holdfast.Bus, runner: Runner) -> None:
    """Slow ones of one asker, as many as may be, leave a place to the others."""
    await subscribe(bus)
    await die(bus, *IDS)
    slow = Request("redrive", BILLING, options=CANARY)
    asked = [await runner.operations.ask(slow, "ann") for _ in range(100)]
    with pytest.raises(Overloaded, match="100 operations of ann are unfinished"):
        await runner.operations.ask(slow, "ann")
    quick = await runner.operations.ask(Request("purge", BILLING), "bob")
    serving = asyncio.create_task(runner.serve())
    await until(lambda: _stands(runner, quick.id, "done"))
    await until(lambda: _at_most(runner, 2))  # what is done still takes its mark away
    serving.cancel()
    await asyncio.gather(serving, return_exceptions=True)
    await runner.operations.cancel(asked[-1].id, "ann")  # nobody has begun it
    await runner.operations.ask(slow, "ann")
    assert "bob" not in {each.actor for each in await runner.operations.marks()}


async def test_work_is_looked_for_without_reading_the_operations(
    bus: holdfast.Bus, runner: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A record of an operation can have megabytes: whoever looks each second reads marks."""
    items = tuple(f"job:{CHANNEL}:{CONSUMER}:{number}" for number in range(1000))
    for _ in range(3):
        await runner.do(Request("requeue", items=items), "ann")
    read = list[int]()
    looked = store(bus).records.due

    async def counted(prefix: str, limit: int, **how: Any) -> list[StateRecord]:
        found = await looked(prefix, limit, **how)
        read.append(sum(len(value) for each in found for value in each.fields.values()))
        return found

    monkeypatch.setattr(store(bus).records, "due", counted)
    assert await runner.operations.unfinished() == []
    assert sum(read) < 1000


async def test_a_mark_that_somebody_left_is_taken(bus: holdfast.Bus, runner: Runner) -> None:
    """It is made before its operation: a new one is left alone, for whoever is about to write that."""
    await subscribe(bus)
    await die(bus, *IDS)
    asked = await runner.operations.ask(Request("purge", BILLING), "ann")
    record = await runner.operations.mark_of(asked.id)
    assert record is not None
    await store(bus).records.put("gbe.state.unfinished.nobody", record.fields, 0, await store(bus).now())
    assert await runner.resume_all() == 1
    assert [each.id for each in await runner.operations.marks()] == ["nobody"]
    await later(bus, timedelta(minutes=2))
    assert await runner.resume_all() == 0
    assert await runner.operations.marks() == []


async def test_an_operation_of_an_older_version_is_found(bus: holdfast.Bus, runner: Runner) -> None:
    await subscribe(bus)
    await die(bus, *IDS)
    asked = await runner.operations.ask(Request("purge", BILLING), "ann")
    await runner.operations.unmark(await runner.operations.mark_of(asked.id))
    assert await runner.resume_all() == 1
    assert await _stands(runner, asked.id, "done")


async def _stands(runner: Runner, operation_id: str, state: str) -> bool:
    return (await runner.operations.show(operation_id)).state == state


async def test_a_run_that_cannot_go_on_has_failed_and_says_why(bus: holdfast.Bus, runner: Runner) -> None:
    await subscribe(bus)
    await die(bus, *IDS)
    asked = await runner.operations.ask(Request("purge", BILLING), "ann")
    with failpoints.active("operation.after_intent", "raise"):
        failed = await runner.run(asked.id)
    assert failed is not None
    assert (failed.state, "failpoint operation.after_intent" in failed.outcome) == ("failed", True)
    assert await runner.resume_all() == 0, "nobody tries it again by itself"
    await runner.operations.resume(asked.id, "bob")
    done = await runner.follow(asked.id)
    assert (done.state, done.outcome) == ("done", "10 of 10 done, 0 skipped")


async def test_a_killed_removal_is_finished(bus: holdfast.Bus, runner: Runner, database: str) -> None:
    await subscribe(bus)
    await die(bus, *IDS)
    request = Request("remove_consumer", Filter.of(channel=CHANNEL, consumer=CONSUMER))
    asked = await runner.operations.ask(request, "ann")
    await killed(database, "operation.after_act=kill")
    assert await runner.operations.letters.status() == []
    await later(bus, LAPSE)
    assert await runner.resume_all() == 1
    assert (await runner.operations.show(asked.id)).state == "done"
    await subscribe(bus)
    assert sorted(await work(bus)) == IDS


@pytest.mark.parametrize("point", ["after_lock", "after_intent", "after_act", "before_end"])
async def test_a_killed_emptying_goes_on_and_takes_nothing_new(
    bus: holdfast.Bus, runner: Runner, database: str, point: str
) -> None:
    """What a step may have done is not done a second time to what was published since."""
    await subscribe(bus)
    await bus.publish_many(CHANNEL, [Event(n, f"o-{n}") for n in range(20)])
    request = Request("empty_consumer", Filter.of(channel=CHANNEL, consumer=CONSUMER))
    asked = await runner.operations.ask(request, "ann")
    await killed(database, f"operation.{point}=kill")
    await later(bus, LAPSE)
    if point in ("after_act", "before_end"):
        assert await states(bus) == {"cancelled": 20}
        await bus.publish(CHANNEL, {}, id="new")
    assert await runner.resume_all() == 1
    done = await runner.operations.show(asked.id)
    assert done.state == "done"
    match point:
        case "after_lock":
            assert (done.outcome, await states(bus)) == ("20 of 20 done, 0 skipped", {"cancelled": 20})
        case "after_intent":  # nobody can know that it was not made
            assert await states(bus) == {"ready": 20}
        case _:
            assert await work(bus) == ["new"]


async def test_an_emptying_is_cancelled_between_two_steps(bus: holdfast.Bus, runner: Runner) -> None:
    await subscribe(bus)
    await bus.publish_many(CHANNEL, [Event(n, f"o-{n}") for n in range(100)])
    request = Request("empty_consumer", Filter.of(channel=CHANNEL, consumer=CONSUMER))
    asked, stop = await runner.operations.ask(request, "ann"), asyncio.Event()
    ended = await runner.follow(asked.id, stop=stop, on_progress=lambda each: stop.set())
    assert ended.state == "cancelled"
    assert 0 < (done := ended.progress.done) < 100
    assert await states(bus) == {"cancelled": done, "ready": 100 - done}
    await runner.operations.resume(asked.id, "bob")
    assert (await runner.follow(asked.id)).outcome == "100 of 100 done, 0 skipped"
