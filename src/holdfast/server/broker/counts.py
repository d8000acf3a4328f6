"""Counts: how many jobs each consumer has, and how many are dead."""

from __future__ import annotations

from collections import Counter, defaultdict
from contextlib import suppress
from datetime import datetime
from typing import Annotated

from fastapi import Depends, Query

from holdfast.deadletters.items import ConsumerDead
from holdfast.model.errors import NotFound
from holdfast.model.job import State
from holdfast.server.admission import Router
from holdfast.server.auth.caller import Caller
from holdfast.server.auth.guard import needs
from holdfast.server.broker.models import ConsumerJobs, DLQConsumer, DLQStatus, JobStatus, StatusCount
from holdfast.server.context import Known, System

router = Router()

COUNTED = 100_000
"""Live jobs are counted up to this number, where a store has no counter for them."""
CODES = {"QUEUED": 1001, "INFLIGHT": 1002, "DELIVERED": 1003, "DEAD": 1004}
_ALWAYS_EXACT = ("DELIVERED", "DEAD")

Reads = Annotated[Caller, Depends(needs("read", filtered=True))]


@router.get("/dlq-status")
async def dlq_status(system: Known, caller: Reads) -> DLQStatus:
    """How many dead jobs each consumer has, exact, at a cost that does not grow with them."""
    found = await system.letters.status(caller.right("read"))
    return DLQStatus(consumers=[DLQConsumer(**names_of(each), deadCount=each.dead) for each in found])


@router.get("/job-status")
async def job_status(
    system: Known,
    caller: Reads,
    delivered: Annotated[
        bool,
        Query(description="Also count what was delivered, as far as it is remembered. That takes longer."),
    ] = False,
) -> JobStatus:
    """How many jobs each consumer has, by status.

    With the oldest and the newest time of those that are due, and of those that are dead.
    """
    live, exact = await _live(system, caller)
    times = await _times(system)
    consumers = []
    for each in await system.letters.status(caller.right("read")):
        key = each.channel, each.consumer
        counts = {"QUEUED": live[*key, "queued"], "INFLIGHT": live[*key, "inflight"], "DEAD": each.dead}
        if delivered:
            counts["DELIVERED"] = await _delivered(system, *key)
        consumers.append(
            ConsumerJobs(**names_of(each), statuses=_statuses(counts, exact, times.get(key, {})))
        )
    return JobStatus(consumers=consumers)


async def _live(system: System, caller: Caller) -> tuple[Counter[tuple[str, str, str]], bool]:
    """Live jobs by consumer that the caller sees, all stores together, and whether nothing was too many to
    count: leased and scheduled ones are counted for all consumers together."""
    found: Counter[tuple[str, str, str]] = Counter()
    totals: Counter[State] = Counter()
    most = 0
    for store in await system.letters.stores():
        for each in await store.backlogs(COUNTED):
            totals.update({state: each.live.get(state, 0) for state in (State.LEASED, State.SCHEDULED)})
            if not caller.sees(each.channel, each.consumer):
                continue
            most = max(most, each.live.get(State.READY, 0))
            waiting = each.live.get(State.READY, 0) + each.live.get(State.SCHEDULED, 0)
            found[each.channel, each.consumer, "queued"] += waiting
            found[each.channel, each.consumer, "inflight"] += each.live.get(State.LEASED, 0)
    return found, max(most, *totals.values(), 0) < COUNTED


async def _times(system: System) -> dict[tuple[str, str], dict[str, tuple[datetime, datetime]]]:
    """The oldest and the newest time by consumer and status, all stores together."""
    found: defaultdict[tuple[str, str], dict[str, tuple[datetime, datetime]]] = defaultdict(dict)
    for store in await system.letters.stores():
        for each in await store.job_times():
            known = found[each.channel, each.consumer]
            for name, span in (("QUEUED", each.ready), ("DEAD", each.dead)):
                if span is not None:
                    oldest, newest = known.get(name, span)
                    known[name] = min(oldest, span[0]), max(newest, span[1])
    return found


async def _delivered(system: System, channel: str, consumer: str) -> int:
    done = 0
    for store in await system.letters.stores():
        with suppress(NotFound):  # it was removed since, or this store never had it
            done += (await store.consumer_stats(channel, consumer)).states.get(State.DONE, 0)
    return done


def _statuses(
    counts: dict[str, int], exact: bool, times: dict[str, tuple[datetime, datetime]]
) -> list[StatusCount]:
    return [
        StatusCount(
            status=code,
            name=name,
            count=counts[name],
            exact=exact or name in _ALWAYS_EXACT,
            **dict(zip(("oldest", "newest"), times.get(name, ()), strict=False)),
        )
        for name, code in CODES.items()
        if name in counts
    ]


def names_of(found: ConsumerDead) -> dict[str, str]:
    """A consumer's ids and names, as the broker calls them."""
    return {
        "channelId": found.channel,
        "channelName": found.channel_name,
        "consumerId": found.consumer,
        "consumerName": found.consumer_name,
    }
