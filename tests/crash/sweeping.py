"""What the sweeper's tests share: an untidy store, the process that tidies it, and what became of it all."""

from __future__ import annotations

import json
from collections import Counter
from datetime import timedelta
from typing import Any

from holdfast.bus.client import Bus
from holdfast.contracts import Backend
from holdfast.model.event import Event
from holdfast_chaos.history import Call, of
from holdfast_chaos.rig import CHANNEL, CONSUMER, Process, Rig
from holdfast_chaos.roles.consumers import follow
from kit import read_all

AUDIT = "gbe.events.audit"
ARCHIVER = "archiver"
LEASE, AGE, TTL = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)
OLD, PAGE = 12, 4
"""Events that each turn adds to the audit, and how many of them it archives."""
DONE, DEAD, STUCK, WAITING = 3, 2, 2, 2
"""What each turn makes of its orders, in their order."""


def sweep(rig: Rig, failpoints: str = "", **spec: Any) -> Process:
    """A sweeper under the rules of these tests."""
    keep = dict.fromkeys((AUDIT, CHANNEL), AGE.total_seconds())
    rules = {"keep": keep, "dead_letters": AGE.total_seconds(), "lock_ttl": TTL.total_seconds()}
    return rig.start("sweeper", failpoints, **(rules | {"owner": f"sweeper-{len(rig.processes)}"} | spec))


async def archived(rig: Rig, backend: Backend, pages: int = 1) -> None:
    """So many pages of the audit are archived."""
    await follow(backend, rig.notes(f"archiver-{len(rig.calls())}"), AUDIT, ARCHIVER, PAGE, pages)


def store_of(bus: Bus) -> Backend:
    return bus.partitions.all[0].backend


async def mess(bus: Bus, turn: str) -> None:
    """Events that become old, orders that are done, dead, stuck and waiting; then time passes."""
    await bus.subscribe(CHANNEL, CONSUMER, lease=LEASE, max_abandonments=100)
    await bus.publish_many(AUDIT, [Event({"n": n}, f"{turn}-audit-{n}") for n in range(OLD)])
    total = DONE + DEAD + STUCK + WAITING
    await bus.publish_many(CHANNEL, [Event({"n": n}, f"{turn}-order-{n}") for n in range(total)])
    jobs = await bus.poll(CHANNEL, CONSUMER, limit=1000)
    fresh = sorted(
        (job for job in jobs if job.event.id.startswith(turn)), key=lambda job: job.event.json()["n"]
    )
    for job in [each for each in jobs if each not in fresh] + fresh[DONE + DEAD + STUCK :]:
        await bus.release(job)
    await bus.finalize_many(fresh[:DONE], success=True)
    for job in fresh[DONE : DONE + DEAD]:
        await bus.finalize(job, success=False, error="no", terminal=True)
    await store_of(bus).advance(2 * AGE)


async def left(backend: Backend, channel: str) -> list[str]:
    """The ids that the log still has."""
    return [entry.event.id for entry in await read_all(backend, channel)]


async def told(backend: Backend, topic: str) -> list[Any]:
    """The system events of a topic."""
    return [json.loads(entry.event.data) for entry in await read_all(backend, f"gbe.events.system.{topic}")]


def reports(calls: list[Call]) -> list[Any]:
    """What the sweepers reported, process by process."""
    return [call.items[0] for call in of(calls, "swept")]


def summed(found: list[Any], name: str) -> Counter[str]:
    """One field of all reports, added up."""
    total: Counter[str] = Counter()
    for report in found:
        total.update(report[name])
    return total


def removed(calls: list[Call]) -> Counter[str]:
    """How many events the trims removed, by channel, as the store answered."""
    answers = [(item["channel"], number) for call in of(calls, "trim") for item, number in call.told()]
    return sum((Counter({channel: number}) for channel, number in answers), Counter())


def published(calls: list[Call], channel: str) -> set[str]:
    """The ids that were acknowledged on a channel."""
    told = [item for call in of(calls, "publish") for item, _ in call.told()]
    return {item["id"] for item in told if item["channel"] == channel}
