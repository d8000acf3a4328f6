"""Deletion: dead jobs that nobody wants back, one or all of a consumer's."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Depends, Query
from fastapi.responses import JSONResponse

from holdfast.deadletters.ids import ItemId, job_item
from holdfast.deadletters.items import Filter
from holdfast.deadletters.operation import Operation, Options, Request
from holdfast.model.errors import NotFound
from holdfast.model.job import State
from holdfast.server.admission import Router
from holdfast.server.auth.caller import Caller
from holdfast.server.auth.guard import needs
from holdfast.server.broker.models import Accepted, Deleted
from holdfast.server.context import Known, System
from holdfast.server.parameters import Channel, Consumer, JobId
from holdfast.server.refusals import Conflict

router = Router()

SMALL = 1_000
"""So many dead letters are dealt with inside the call; more become an operation."""
MANY: dict[int | str, dict[str, Any]] = {
    202: {"model": Accepted, "description": "There are many: an operation does it"}
}

Operates = Annotated[Caller, Depends(needs("operate", pair=True))]
OnlyExhausted = Annotated[
    bool, Query(description="Only what used up all its attempts: leaves out what was buried early.")
]


@router.delete(
    "/channel/{channelId}/consumer/{consumerId}/dlq",
    response_model=Deleted,
    responses=MANY,
)
async def purge_dead_jobs(
    channelId: Channel,
    consumerId: Consumer,
    system: Known,
    caller: Operates,
    only_exhausted: OnlyExhausted = False,
) -> Deleted | JSONResponse:
    """Delete all dead jobs of a consumer: a few within the call, many as an operation in chunks."""
    await check_consumer(system, channelId, consumerId)
    wanted = Filter.of(channel=channelId, consumer=consumerId, kinds=["job"])
    options = Options(only_exhausted=only_exhausted)
    done = await do_or_accept(system, Request("purge", wanted, options=options), caller)
    return Deleted(deleted=done) if isinstance(done, int) else done


@router.delete("/channel/{channelId}/consumer/{consumerId}/job/{jobId}")
async def delete_dead_job(
    channelId: Channel,
    consumerId: Consumer,
    jobId: JobId,
    system: Known,
    caller: Operates,
    only_exhausted: OnlyExhausted = False,
) -> Deleted:
    """Delete one dead job. One that is not dead is left alone: 409."""
    item = job_item(channelId, consumerId, jobId)
    await _check_dead(system, item)
    options = Options(only_exhausted=only_exhausted)
    request = Request("delete", items=(str(item),), options=options)
    done = _ended(await system.runner.do(request, caller.actor, caller.scopes))
    if not done.progress.done:
        raise Conflict(
            f"job {jobId} was not deleted: {'; '.join(done.problems) or 'it is not dead any more'}"
        )
    return Deleted(deleted=done.progress.done)


async def do_or_accept(system: System, request: Request, caller: Caller) -> int | JSONResponse:
    """Run an operation and return how many it dealt with; where there are many, accept it for later."""
    operation = await system.operations.ask(request, caller.actor, caller.scopes)
    if (operation.progress.expected or 0) <= SMALL:
        return _ended(await system.runner.follow(operation.id)).progress.done
    accepted = Accepted(operation=operation.id, expected=operation.progress.expected)
    return JSONResponse(accepted.model_dump(), 202, {"Location": f"/api/v1/operations/{operation.id}"})


async def check_consumer(system: System, channel: str, consumer: str) -> None:
    """`NotFound`, unless some store has the consumer."""
    missing: list[NotFound] = []
    for store in await system.letters.stores():
        try:
            await store.consumer(channel, consumer)
        except NotFound as error:
            missing.append(error)
        else:
            return
    raise missing[0]


async def _check_dead(system: System, item: ItemId) -> None:
    store = await system.letters.store(item.partition)
    job = await store.job(item.channel, item.consumer, item.local)
    if job is None:
        raise NotFound(f"consumer {item.consumer!r} of channel {item.channel!r} has no job {item.local}")
    if job.state is not State.DEAD:
        raise Conflict(f"job {item.local} is {job.state}, not dead; only dead jobs are deleted")


def _ended(operation: Operation) -> Operation:
    if operation.state != "done":
        raise Conflict(f"operation {operation.id} is {operation.state}: {operation.outcome}")
    return operation
