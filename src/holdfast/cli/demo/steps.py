"""The steps of the demo, in order. Each does one thing and returns what it has shown, in one line."""

from __future__ import annotations

import asyncio
import signal
import time
from asyncio.subprocess import Process
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import islice

import orjson

from holdfast.bus.client import Bus
from holdfast.cli.consumers import merged_stats
from holdfast.cli.demo.audit import Expected
from holdfast.cli.demo.orders import BOMB_POLICY, CONSUMER, POLICY, Kind, bomb_channel, order, orders
from holdfast.cli.demo.pipeline import Pipeline
from holdfast.cli.demo.processes import DemoProcesses
from holdfast.cli.session import stores
from holdfast.contracts import ConsumerStats
from holdfast.model.errors import HoldfastError, IdConflict
from holdfast.model.event import Event
from holdfast.model.states import LIVE, State

_BATCH = 250
_LATER = timedelta(seconds=8)


@dataclass(slots=True)
class DemoRun:
    """What the steps share: the bus, the processes, and what the store has acknowledged."""

    bus: Bus
    processes: DemoProcesses
    channel: str
    size: int
    """How many orders there will be, roughly."""
    expected: Expected = field(default_factory=Expected)
    workers: list[Process] = field(default_factory=list)

    async def publish(self, events: Iterable[Event]) -> list[Event]:
        """Publish in batches and note every acknowledgement."""
        left, sent = iter(events), []
        while batch := list(islice(left, _BATCH)):
            self.expected.note(self.channel, await self.bus.publish_many(self.channel, batch))
            sent += batch
        return sent

    async def stats(self) -> ConsumerStats:
        """The jobs of the orders, by state."""
        found = [
            await store.channels.consumer_stats(self.channel, CONSUMER) for store in await stores(self.bus)
        ]
        return merged_stats(found)

    async def live(self) -> int:
        """How many orders are still waiting or at work."""
        states = (await self.stats()).states
        return sum(states.get(state, 0) for state in LIVE)

    async def until(self, condition: Callable[[], Awaitable[bool]]) -> None:
        """Wait for something that must come true while the workers live."""
        while not await condition():
            for worker in self.workers:
                self.processes.check(worker)
            await asyncio.sleep(0.1)


Step = Callable[[DemoRun], Awaitable[str]]


async def check(run: DemoRun) -> str:
    """What the store's settings promise."""
    findings = [finding for store in await stores(run.bus) for finding in await store.check()]
    version = next((finding.message for finding in findings if finding.subject == "version"), "the store")
    worries = [f"{finding.subject} {finding.message}" for finding in findings if finding.level != "ok"]
    return f"{version}: " + ("; ".join(worries) or "what it acknowledges survives a power cut")


async def publish(run: DemoRun) -> str:
    """Half of the orders, some of them twice."""
    await run.bus.subscribe(run.channel, CONSUMER, **POLICY)
    began = time.monotonic()
    sent = await run.publish(orders(0, run.size // 2))
    seconds = time.monotonic() - began
    again = sent[::20]
    receipts = await run.bus.publish_many(run.channel, again)
    run.expected.note_again(run.channel, again, receipts)
    return (
        f"{len(sent):,} orders acknowledged in {seconds:.1f} s; {len(again)} sent again: "
        f"{run.expected.duplicates} recognised as duplicates"
    )


async def conflict(run: DemoRun) -> str:
    """The same id with other content."""
    first = order(0, Kind.GOOD)
    try:
        await run.bus.publish(
            run.channel, {"total": 0}, id=first.id, source=first.source, type=first.type, key=first.key
        )
    except IdConflict:
        run.expected.conflicts += 1
        return f"{first.id} with another total: refused, an id stands for one content"
    raise HoldfastError(f"{first.id} was accepted twice with different content")


async def schedule(run: DemoRun) -> str:
    """Orders for later."""
    later = [order(run.size + number, Kind.GOOD) for number in range(run.size // 20)]
    [store, *_] = await stores(run.bus)
    receipts = await run.bus.publish_many(run.channel, later, at=await store.now() + _LATER)
    run.expected.note(run.channel, receipts)
    return f"{len(later)} orders for {_LATER.seconds} s later, by the store's clock"


async def work(run: DemoRun) -> str:
    """A worker process begins."""
    run.workers.append(await run.processes.start_worker("shop"))
    goal = run.size // 10

    async def some_done() -> bool:
        return (await run.stats()).states.get(State.DONE, 0) >= goal

    await run.until(some_done)
    return f"worker {run.workers[-1].pid} has done its first {goal} orders"


async def kill(run: DemoRun) -> str:
    """SIGKILL in the middle of work, and a replacement."""
    victim = run.workers.pop()
    victim.kill()
    await victim.wait()
    held = (await run.stats()).states.get(State.LEASED, 0)
    run.workers.append(await run.processes.start_worker("shop"))
    return (
        f"worker {victim.pid} killed by SIGKILL, {held} orders in its hands: "
        f"{run.workers[-1].pid} gets them when their leases end"
    )


async def publish_rest(run: DemoRun) -> str:
    """The other half, while work goes on."""
    sent = await run.publish(orders(run.size // 2, run.size - run.size // 2))
    return f"{len(sent):,} more orders while the new worker works"


async def freeze(run: DemoRun) -> str:
    """A worker that is paused past its lease, and answers when it is too late."""
    paused = await run.processes.start_paused_worker()
    claimed = await run.processes.read_line(paused)
    paused.send_signal(signal.SIGSTOP)

    async def all_taken() -> bool:
        for event_id, token in claimed.items():
            for job in await run.bus.find_jobs(run.channel, event_id):
                if job.state is State.LEASED and job.token == token:
                    return False
        return True

    await run.until(all_taken)
    paused.send_signal(signal.SIGCONT)
    told, _ = await paused.communicate(b"\n")
    refused: int = orjson.loads(told)["refused"]
    run.expected.stale += refused
    return (
        f"worker {paused.pid} froze past its lease with {len(claimed)} orders: "
        f"given to others, its {refused} late answers refused"
    )


async def bomb(run: DemoRun) -> str:
    """An order that kills every worker it meets."""
    channel = bomb_channel(run.channel)
    await run.bus.subscribe(channel, CONSUMER, **BOMB_POLICY)
    event = order(0, Kind.BOMB)
    run.expected.note(channel, await run.bus.publish_many(channel, [event]))
    deaths = 0
    worker = await run.processes.start_worker("minefield")

    async def buried() -> bool:
        nonlocal deaths, worker
        if worker.returncode is not None:
            deaths += 1
            worker = await run.processes.start_worker("minefield")
        [job] = await run.bus.find_jobs(channel, event.id)
        return job.state is State.DEAD

    await run.until(buried)
    await run.processes.stop(worker)
    return f"one order killed {deaths} workers, then it was buried (crash_loop) instead of a third"


async def drain(run: DemoRun) -> str:
    """Until nothing is left."""

    async def nothing_left() -> bool:
        return await run.live() == 0

    await run.until(nothing_left)
    return "no order waits: retried, scheduled and recovered ones are done or dead"


async def dismiss(run: DemoRun) -> str:
    """SIGTERM."""
    worker = run.workers.pop()
    code = await run.processes.stop(worker)
    if code:
        raise run.processes.failure(worker, "worker", " after SIGTERM")
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
    return [*first, ("driver", pipeline.start_driver), *bus, *last]
