"""Dead jobs of one consumer: listed, and all put back into the queue."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends
from fastapi.responses import JSONResponse

from holdfast.deadletters.items import Filter
from holdfast.deadletters.operation import Request
from holdfast.model.errors import NotFound
from holdfast.server.admission import Router
from holdfast.server.auth.caller import Caller
from holdfast.server.auth.guard import needs
from holdfast.server.broker.counts import names_of
from holdfast.server.broker.deletion import MANY, Operates, check_consumer, do_or_accept
from holdfast.server.broker.models import DeadJob, DeadJobs, Requeued
from holdfast.server.context import Known
from holdfast.server.parameters import After, Channel, Consumer, Limit

router = Router()

DEAD_JOBS = "dead jobs"
"""What cursors call the list."""


Reads = Annotated[Caller, Depends(needs("read", pair=True))]


@router.get("/channel/{channelId}/consumer/{consumerId}/dlq")
async def list_dead_jobs(
    channelId: Channel,
    consumerId: Consumer,
    system: Known,
    caller: Reads,
    limit: Limit = 100,
    after: After = None,
) -> DeadJobs:
    """Dead jobs of a consumer, the latest death first. `deadCount` is exact; a page can be short."""
    key, known = (channelId, consumerId), await system.letters.status(caller.right("read"))
    found = next((each for each in known if (each.channel, each.consumer) == key), None)
    if found is None:
        raise NotFound(f"channel {channelId!r} has no consumer {consumerId!r}")
    wanted = Filter.of(channel=channelId, consumer=consumerId, kinds=["job"])
    place = await system.cursors.open(caller, DEAD_JOBS, after)
    page = await system.letters.find(wanted, place, limit, caller.right("read"))
    jobs = [DeadJob.of(each) for each in page.items]
    goes_on = await system.cursors.seal(caller, DEAD_JOBS, page.after)
    return DeadJobs(**names_of(found), deadCount=found.dead, jobs=jobs, after=goes_on)


@router.post("/channel/{channelId}/consumer/{consumerId}/dlq", response_model=Requeued, responses=MANY)
async def requeue_dead_jobs(
    channelId: Channel, consumerId: Consumer, system: Known, caller: Operates
) -> Requeued | JSONResponse:
    """Put all dead jobs of a consumer back into its queue: a few within the call, many as an operation."""
    await check_consumer(system, channelId, consumerId)
    wanted = Filter.of(channel=channelId, consumer=consumerId, kinds=["job"])
    done = await do_or_accept(system, Request("requeue", wanted), caller)
    return Requeued(requeued=done) if isinstance(done, int) else done
