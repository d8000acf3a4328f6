"""The steps of the demo, in order. Each does one thing and answers what it has shown, in one line."""

from __future__ import annotations

import signal
import time
from collections.abc import Awaitable, Callable
from datetime import timedelta

import orjson

from holdfast.cli.demo.orders import Kind, order, orders
from holdfast.cli.demo.pipeline import Pipeline
from holdfast.cli.demo.stage import Stage
from holdfast.cli.demo.terms import BOMB_POLICY, CONSUMER, POLICY, bombs
from holdfast.cli.session import stores
from holdfast.model.errors import HoldfastError, IdConflict
from holdfast.model.job import State

Step = Callable[[Stage], Awaitable[str]]
_LATER = timedelta(seconds=8)


async def check(stage: Stage) -> str:
    """What the store's settings promise."""
    findings = [finding for store in await stores(stage.bus) for finding in await store.check()]
    version = next((finding.message for finding in findings if finding.subject == "version"), "the store")
    worries = [f"{finding.subject} {finding.message}" for finding in findings if finding.level != "ok"]
    return f"{version}: " + ("; ".join(worries) or "what it acknowledges survives a power cut")


async def publish(stage: Stage) -> str:
    """Half of the orders, some of them twice."""
    await stage.bus.subscribe(stage.channel, CONSUMER, **POLICY)
    began = time.monotonic()
    sent = await stage.publish(orders(0, stage.size // 2))
    seconds = time.monotonic() - began
    again = sent[::20]
    receipts = await stage.bus.publish_many(stage.channel, again)
    stage.record.note_again(stage.channel, again, receipts)
    return (
        f"{len(sent):,} orders acknowledged in {seconds:.1f} s; {len(again)} sent again: "
        f"{stage.record.duplicates} recognised as duplicates"
    )


async def conflict(stage: Stage) -> str:
    """The same id with other content."""
    first = order(0, Kind.GOOD)
    try:
        await stage.bus.publish(
            stage.channel, {"total": 0}, id=first.id, source=first.source, type=first.type, key=first.key
        )
    except IdConflict:
        stage.record.conflicts += 1
        return f"{first.id} with another total: refused, an id stands for one content"
    raise HoldfastError(f"{first.id} was accepted twice with different content")


async def schedule(stage: Stage) -> str:
    """Orders for later."""
    later = [order(stage.size + number, Kind.GOOD) for number in range(stage.size // 20)]
    [store, *_] = await stores(stage.bus)
    receipts = await stage.bus.publish_many(stage.channel, later, at=await store.now() + _LATER)
    stage.record.note(stage.channel, receipts)
    return f"{len(later)} orders for {_LATER.seconds} s later, by the store's clock"


async def work(stage: Stage) -> str:
    """A worker process begins."""
    stage.workers.append(await stage.crew.hire("shop"))
    goal = stage.size // 10

    async def some_done() -> bool:
        return (await stage.stats()).states.get(State.DONE, 0) >= goal

    await stage.until(some_done)
    return f"worker {stage.workers[-1].pid} has done its first {goal} orders"


async def kill(stage: Stage) -> str:
    """SIGKILL in the middle of work, and a replacement."""
    victim = stage.workers.pop()
    victim.kill()
    await victim.wait()
    held = (await stage.stats()).states.get(State.LEASED, 0)
    stage.workers.append(await stage.crew.hire("shop"))
    return (
        f"worker {victim.pid} killed by SIGKILL, {held} orders in its hands: "
        f"{stage.workers[-1].pid} gets them when their leases end"
    )


async def publish_rest(stage: Stage) -> str:
    """The other half, while work goes on."""
    sent = await stage.publish(orders(stage.size // 2, stage.size - stage.size // 2))
    return f"{len(sent):,} more orders while the new worker works"


async def freeze(stage: Stage) -> str:
    """A worker that is paused past its lease, and answers when it is too late."""
    sleeper = await stage.crew.hire_sleeper()
    claimed = await stage.crew.said(sleeper)
    sleeper.send_signal(signal.SIGSTOP)

    async def all_taken() -> bool:
        for event_id, token in claimed.items():
            for job in await stage.bus.find_jobs(stage.channel, event_id):
                if job.state is State.LEASED and job.token == token:
                    return False
        return True

    await stage.until(all_taken)
    sleeper.send_signal(signal.SIGCONT)
    told, _ = await sleeper.communicate(b"\n")
    refused: int = orjson.loads(told)["refused"]
    stage.record.stale += refused
    return (
        f"worker {sleeper.pid} froze past its lease with {len(claimed)} orders: "
        f"given to others, its {refused} late answers refused"
    )


async def bomb(stage: Stage) -> str:
    """An order that kills every worker it meets."""
    channel = bombs(stage.channel)
    await stage.bus.subscribe(channel, CONSUMER, **BOMB_POLICY)
    event = order(0, Kind.BOMB)
    stage.record.note(channel, await stage.bus.publish_many(channel, [event]))
    deaths = 0
    worker = await stage.crew.hire("minefield")

    async def buried() -> bool:
        nonlocal deaths, worker
        if worker.returncode is not None:
            deaths += 1
            worker = await stage.crew.hire("minefield")
        [job] = await stage.bus.find_jobs(channel, event.id)
        return job.state is State.DEAD

    await stage.until(buried)
    await stage.crew.dismiss(worker)
    return f"one order killed {deaths} workers, then it was buried (crash_loop) instead of a third"


async def drain(stage: Stage) -> str:
    """Until nothing is left."""

    async def nothing_left() -> bool:
        return await stage.live() == 0

    await stage.until(nothing_left)
    return "no order waits: retried, scheduled and recovered ones are done or dead"


async def dismiss(stage: Stage) -> str:
    """SIGTERM."""
    worker = stage.workers.pop()
    code = await stage.crew.dismiss(worker)
    if code:
        raise stage.crew.failure(worker, "worker", " after SIGTERM")
    return f"worker {worker.pid} drained on SIGTERM and ended with 0"


def steps(pipeline: Pipeline | None) -> list[tuple[str, Step]]:
    """All steps, with or without those of the pipeline."""
    first: list[tuple[str, Step]] = [("check", check), ("publish", publish)]
    bus: list[tuple[str, Step]] = [
        ("conflict", conflict),
        ("schedule", schedule),
        ("work", work),
        ("kill", kill),
        ("publish", publish_rest),
        ("freeze", freeze),
        ("bomb", bomb),
        ("drain", drain),
        ("dismiss", dismiss),
    ]
    if pipeline is None:
        return first + bus
    last: list[tuple[str, Step]] = [
        ("archive", pipeline.archive),
        ("ingest", pipeline.ingest),
        ("reconcile", pipeline.reconcile),
    ]
    return [*first, ("driver", pipeline.doom), *bus, *last]
