"""The broker's endpoints: its paths, its names, and its two tokens."""

from __future__ import annotations

from collections import Counter, defaultdict
from contextlib import suppress
from datetime import datetime
from typing import Annotated, Any

from fastapi import Depends, Query
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field

from holdfast.deadletters.items import ConsumerDead, Filter, Item, ItemId, job_item
from holdfast.deadletters.operation import Operation, OperationOptions, Request
from holdfast.model.errors import NotFound
from holdfast.model.states import State
from holdfast.server.api.models import After, Channel, Consumer, JobId, Limit
from holdfast.server.auth.caller import Caller
from holdfast.server.auth.guard import ReadsFiltered, Router, needs
from holdfast.server.errors import Conflict
from holdfast.server.system import Known, System

router = Router(tags=["broker"])

COUNTED = 100_000
"""Live jobs are counted up to this number, where a store has no counter for them."""
CODES = {"QUEUED": 1001, "INFLIGHT": 1002, "DELIVERED": 1003, "DEAD": 1004}
_ALWAYS_EXACT = ("DELIVERED", "DEAD")
SMALL = 1_000
"""So many dead letters are dealt with inside the call; more become an operation."""
DEAD_JOBS = "dead jobs"
"""What cursors of the list are for."""

ReadsConsumer = Annotated[Caller, Depends(needs("read", pair=True))]
OperatesConsumer = Annotated[Caller, Depends(needs("operate", pair=True))]
OnlyExhausted = Annotated[
    bool, Query(description="Only what used up all its attempts: leaves out what was buried early.")
]


class _Model(BaseModel):
    model_config = ConfigDict(use_attribute_docstrings=True)


class ConsumerNames(_Model):
    """A consumer: ids that work in every path, and names for people."""

    channelId: str = Field(examples=["order-events"])
    channelName: str = Field(examples=["Order Events"])
    consumerId: str = Field(examples=["payment-service"])
    consumerName: str = Field(examples=["Payment Service"])


class DLQConsumer(ConsumerNames):
    """A consumer and how many of its jobs are dead: exact, at any number."""

    deadCount: int = Field(examples=[23469224], ge=0)


class DLQStatus(_Model):
    """Every worker consumer that the caller sees."""

    consumers: list[DLQConsumer]


class StatusCount(_Model):
    """How many jobs have a status: 1001 QUEUED, 1002 INFLIGHT, 1003 DELIVERED, 1004 DEAD."""

    status: int = Field(examples=[1001])
    name: str = Field(examples=["QUEUED"])
    count: int = Field(examples=[7], ge=0)
    exact: bool
    """False: at least so many."""
    oldest: datetime | None = None
    """QUEUED: when the first of those that are due was due. DEAD: when the first of them died."""
    newest: datetime | None = None
    """The same of the last one. Both are null where there is none, and for the other statuses."""


class ConsumerJobs(ConsumerNames):
    """A consumer and its jobs by status."""

    statuses: list[StatusCount]


class JobStatus(_Model):
    """Every worker consumer that the caller sees."""

    consumers: list[ConsumerJobs]


class DeadJob(_Model):
    """A dead job."""

    jobId: str = Field(examples=["42"])
    """Works in the path of a deletion."""
    messageId: str = Field(examples=["o-1"])
    """The event's id."""
    status: int = Field(default=1004, examples=[1004])
    statusChangedAt: datetime
    """When it died, in the store's time."""
    retryAttemptCount: int = Field(examples=[5], ge=0)
    reason: str = Field(examples=["max_attempts"])
    error: str = Field(examples=["card declined"])
    """The last error."""

    @classmethod
    def of(cls, item: Item) -> DeadJob:
        """From an item of the list of dead letters."""
        return cls(
            jobId=item.job,
            messageId=item.event_id,
            statusChangedAt=item.died_at,
            retryAttemptCount=item.attempts,
            reason=item.reason,
            error=item.error,
        )


class DeadJobs(DLQConsumer):
    """A consumer and a page of its dead jobs."""

    jobs: list[DeadJob]
    after: str | None
    """Where the next page begins; null on the last one."""


class Requeued(_Model):
    """What is in the queue again."""

    requeued: int = Field(examples=[17], ge=0)


class Deleted(_Model):
    """What was deleted."""

    deleted: int = Field(examples=[17], ge=0)


class Accepted(_Model):
    """What is being done: `GET /api/v1/operations/ID` tells how far it is."""

    operation: str
    """The operation's id."""
    expected: int | None
    """How many dead letters there were when it was asked for."""


@router.get("/dlq-status")
async def dlq_status(system: Known, caller: ReadsFiltered) -> DLQStatus:
    """How many dead jobs each consumer has, exact, at a cost that does not grow with them."""
    found = await system.deadletters.status(caller.right("read"))
    return DLQStatus(consumers=[DLQConsumer(**_names_of(each), deadCount=each.dead) for each in found])


@router.get("/job-status")
async def job_status(
    system: Known,
    caller: ReadsFiltered,
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
    for each in await system.deadletters.status(caller.right("read")):
        key = each.channel, each.consumer
        counts = {"QUEUED": live[*key, "queued"], "INFLIGHT": live[*key, "inflight"], "DEAD": each.dead}
        if delivered:
            counts["DELIVERED"] = await _delivered(system, *key)
        consumers.append(
            ConsumerJobs(**_names_of(each), statuses=_statuses(counts, exact, times.get(key, {})))
        )
    return JobStatus(consumers=consumers)


async def _live(system: System, caller: Caller) -> tuple[Counter[tuple[str, str, str]], bool]:
    """Live jobs by consumer that the caller sees, all stores together, and whether nothing was too many to
    count: leased and scheduled ones are counted for all consumers together."""
    found: Counter[tuple[str, str, str]] = Counter()
    totals: Counter[State] = Counter()
    most = 0
    for store in await system.deadletters.stores():
        for each in await store.channels.backlogs(COUNTED):
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
    for store in await system.deadletters.stores():
        for each in await store.channels.job_times():
            known = found[each.channel, each.consumer]
            for name, span in (("QUEUED", each.ready), ("DEAD", each.dead)):
                if span is not None:
                    oldest, newest = known.get(name, span)
                    known[name] = min(oldest, span[0]), max(newest, span[1])
    return found


async def _delivered(system: System, channel: str, consumer: str) -> int:
    done = 0
    for store in await system.deadletters.stores():
        with suppress(NotFound):  # it was removed since, or this store never had it
            done += (await store.channels.consumer_stats(channel, consumer)).states.get(State.DONE, 0)
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


def _names_of(found: ConsumerDead) -> dict[str, str]:
    """A consumer's ids and names, as the broker calls them."""
    return {
        "channelId": found.channel,
        "channelName": found.channel_name,
        "consumerId": found.consumer,
        "consumerName": found.consumer_name,
    }


MANY: dict[int | str, dict[str, Any]] = {
    202: {"model": Accepted, "description": "There are many: an operation does it"}
}


@router.get("/channel/{channelId}/consumer/{consumerId}/dlq")
async def list_dead_jobs(
    channelId: Channel,
    consumerId: Consumer,
    system: Known,
    caller: ReadsConsumer,
    limit: Limit = 100,
    after: After = None,
) -> DeadJobs:
    """Dead jobs of a consumer, the latest death first. `deadCount` is exact; a page can be short."""
    key, known = (channelId, consumerId), await system.deadletters.status(caller.right("read"))
    found = next((each for each in known if (each.channel, each.consumer) == key), None)
    if found is None:
        raise NotFound(f"channel {channelId!r} has no consumer {consumerId!r}")
    wanted = Filter.of(channel=channelId, consumer=consumerId, kinds=["job"])
    place = await system.cursors.open(caller, DEAD_JOBS, after)
    page = await system.deadletters.find(wanted, place, limit, caller.right("read"))
    jobs = [DeadJob.of(each) for each in page.items]
    next_page = await system.cursors.seal(caller, DEAD_JOBS, page.after)
    return DeadJobs(**_names_of(found), deadCount=found.dead, jobs=jobs, after=next_page)


@router.post("/channel/{channelId}/consumer/{consumerId}/dlq", response_model=Requeued, responses=MANY)
async def requeue_dead_jobs(
    channelId: Channel, consumerId: Consumer, system: Known, caller: OperatesConsumer
) -> Requeued | JSONResponse:
    """Put all dead jobs of a consumer back into its queue: a few within the call, many as an operation."""
    await _check_consumer(system, channelId, consumerId)
    wanted = Filter.of(channel=channelId, consumer=consumerId, kinds=["job"])
    done = await _do_or_accept(system, Request("requeue", wanted), caller)
    return Requeued(requeued=done) if isinstance(done, int) else done


@router.delete("/channel/{channelId}/consumer/{consumerId}/dlq", response_model=Deleted, responses=MANY)
async def purge_dead_jobs(
    channelId: Channel,
    consumerId: Consumer,
    system: Known,
    caller: OperatesConsumer,
    only_exhausted: OnlyExhausted = False,
) -> Deleted | JSONResponse:
    """Delete all dead jobs of a consumer: a few within the call, many as an operation in chunks."""
    await _check_consumer(system, channelId, consumerId)
    wanted = Filter.of(channel=channelId, consumer=consumerId, kinds=["job"])
    options = OperationOptions(only_exhausted=only_exhausted)
    done = await _do_or_accept(system, Request("purge", wanted, options=options), caller)
    return Deleted(deleted=done) if isinstance(done, int) else done


@router.delete("/channel/{channelId}/consumer/{consumerId}/job/{jobId}")
async def delete_dead_job(
    channelId: Channel,
    consumerId: Consumer,
    jobId: JobId,
    system: Known,
    caller: OperatesConsumer,
    only_exhausted: OnlyExhausted = False,
) -> Deleted:
    """Delete one dead job. One that is not dead is left alone: 409."""
    item = job_item(channelId, consumerId, jobId)
    await _check_dead(system, item)
    options = OperationOptions(only_exhausted=only_exhausted)
    request = Request("delete", items=(str(item),), options=options)
    done = _ended(await system.runner.do(request, caller.actor, caller.scopes))
    if not done.progress.done:
        raise Conflict(
            f"job {jobId} was not deleted: {'; '.join(done.problems) or 'it is not dead any more'}"
        )
    return Deleted(deleted=done.progress.done)


async def _do_or_accept(system: System, request: Request, caller: Caller) -> int | JSONResponse:
    """Run an operation and return how many it dealt with; where there are many, accept it for later."""
    operation = await system.operations.ask(request, caller.actor, caller.scopes)
    if (operation.progress.expected or 0) <= SMALL:
        return _ended(await system.runner.follow(operation.id)).progress.done
    accepted = Accepted(operation=operation.id, expected=operation.progress.expected)
    return JSONResponse(accepted.model_dump(), 202, {"Location": f"/api/v1/operations/{operation.id}"})


async def _check_consumer(system: System, channel: str, consumer: str) -> None:
    """`NotFound`, unless some store has the consumer."""
    missing: list[NotFound] = []
    for store in await system.deadletters.stores():
        try:
            await store.channels.consumer(channel, consumer)
        except NotFound as error:
            missing.append(error)
        else:
            return
    raise missing[0]


async def _check_dead(system: System, item: ItemId) -> None:
    store = await system.deadletters.store(item.partition)
    job = await store.leases.job(item.channel, item.consumer, item.local)
    if job is None:
        raise NotFound(f"consumer {item.consumer!r} of channel {item.channel!r} has no job {item.local}")
    if job.state is not State.DEAD:
        raise Conflict(f"job {item.local} is {job.state}, not dead; only dead jobs are deleted")


def _ended(operation: Operation) -> Operation:
    if operation.state != "done":
        raise Conflict(f"operation {operation.id} is {operation.state}: {operation.outcome}")
    return operation
