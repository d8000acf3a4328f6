"""Jobs: ended, prolonged, given back, and looked at."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated

from fastapi import Depends
from pydantic import Field

from holdfast.bus.settlement import Failed
from holdfast.deadletters.ids import parse_public
from holdfast.model.decide import describe
from holdfast.model.duration import parse_duration
from holdfast.model.errors import LeaseLost, NotFound, TooLarge
from holdfast.model.event import Event
from holdfast.model.job import Job, Retry
from holdfast.server.admission import Router
from holdfast.server.api.models import Duration, JobOut, Model, Whole
from holdfast.server.auth.caller import Caller
from holdfast.server.auth.guard import needs
from holdfast.server.context import Known, System
from holdfast.server.parameters import Channel, Consumer, JobId, JobName
from holdfast.server.turns import Turns

router = Router(tags=["jobs"], prefix="/channels/{channel}/consumers/{consumer}")

FAILED_AT_ONCE = 200
"""Failures that are sent to the store together: a thousand long errors would hold up the event loop."""
Consumes = Annotated[Caller, Depends(needs("consume"))]


class Held(Model):
    """A job that was polled."""

    token: Annotated[int, Field(ge=0, le=2**53 - 1), Whole]


class Ending(Held):
    """How an attempt ended."""

    success: bool
    error: str = Field(default="failed", max_length=10_000)
    terminal: bool = False
    """No retry can help: bury it."""


class NamedEnding(Ending):
    """The same among others."""

    id: JobName


class Endings(Model):
    """How many attempts ended; at most `server.limits.batch` at once."""

    jobs: list[NamedEnding] = Field(min_length=1)


class Extension(Held):
    """How much longer."""

    by: Duration


class Settled(Model):
    """Which were accepted, and which were refused because their leases were lost."""

    accepted: list[str]
    lost: list[str]


@router.post("/finalize")
async def finalize_jobs(
    channel: Channel, consumer: Consumer, body: Endings, system: Known, caller: Consumes
) -> Settled:
    """End many attempts. A job whose lease was lost is named, and nothing was changed for it."""
    most = system.config.server.limits.batch
    if len(body.jobs) > most:
        raise TooLarge(f"{len(body.jobs)} jobs; end at most {most} at once")
    answers = await _end(system, channel, consumer, body.jobs)
    return Settled(
        accepted=[each.id for each, yes in zip(body.jobs, answers, strict=True) if yes],
        lost=[each.id for each, yes in zip(body.jobs, answers, strict=True) if not yes],
    )


@router.post("/jobs/{jobId}/finalize", status_code=204)
async def finalize_job(
    channel: Channel,
    consumer: Consumer,
    jobId: JobId,
    body: Ending,
    system: Known,
    caller: Consumes,
) -> None:
    """End an attempt: done, or by policy retried or dead. A lost lease is a 409, and changed nothing."""
    named = NamedEnding(id=jobId, **body.model_dump())
    _check_held(jobId, await _end(system, channel, consumer, [named]))


@router.post("/jobs/{jobId}/extend", status_code=204)
async def extend_lease(
    channel: Channel,
    consumer: Consumer,
    jobId: JobId,
    body: Extension,
    system: Known,
    caller: Consumes,
) -> None:
    """Move a lease's deadline to now plus `by`. A lost lease is a 409."""
    by = parse_duration(body.by, what="by")
    job = await _job(system, channel, consumer, jobId, body.token)
    _check_held(jobId, await system.bus.settlement.extend([job], by))


@router.post("/jobs/{jobId}/release", status_code=204)
async def release_job(
    channel: Channel,
    consumer: Consumer,
    jobId: JobId,
    body: Held,
    system: Known,
    caller: Consumes,
) -> None:
    """Give a job back untouched: ready at once, no budget spent. A lost lease is a 409."""
    job = await _job(system, channel, consumer, jobId, body.token)
    _check_held(jobId, await system.bus.settlement.retry([Retry(job, None)]))


@router.get("/jobs/{jobId}")
async def show_job(
    channel: Channel,
    consumer: Consumer,
    jobId: JobId,
    system: Known,
    caller: Annotated[Caller, Depends(needs("read"))],
) -> JobOut:
    """One job, live or ended, with every attempt's error."""
    local, partition = parse_public(jobId)
    found = await (await system.letters.store(partition)).job(channel, consumer, local)
    if found is None:
        raise NotFound(f"consumer {consumer!r} of channel {channel!r} has no job {jobId}")
    return JobOut.of(found, partition)


async def _end(system: System, channel: str, consumer: str, endings: Sequence[NamedEnding]) -> list[bool]:
    """Whether each ending was accepted, in their order."""
    jobs, turns = [await _job(system, channel, consumer, each.id, each.token) for each in endings], Turns()
    good = [place for place, each in enumerate(endings) if each.success]
    bad = [place for place, each in enumerate(endings) if not each.success]
    settlement = system.bus.settlement
    answers = dict(zip(good, await settlement.complete([jobs[place] for place in good]), strict=True))
    for begin in range(0, len(bad), FAILED_AT_ONCE):
        some = bad[begin : begin + FAILED_AT_ONCE]
        failed = []
        for place in some:
            failed.append(await _failed(system, jobs[place], endings[place]))
            await turns.pause()  # a store may answer at once
        answers |= dict(zip(some, await settlement.fail(failed), strict=True))
    return [answers[place] for place in range(len(endings))]


async def _failed(system: System, job: Job, ending: Ending) -> Failed:
    """How many attempts there were is the store's to say, not the caller's."""
    store = await system.letters.store(job.partition)
    found = await store.job(job.channel, job.consumer, job.id)
    job.attempt = found.attempts if found is not None else 0
    return Failed(job, describe(ending.error), ending.terminal)


async def _job(system: System, channel: str, consumer: str, job_id: str, token: int) -> Job:
    """A lease as the caller shows it; the store judges by the id and the token."""
    local, partition = parse_public(job_id)
    await system.letters.store(partition)
    never = datetime.fromtimestamp(0, UTC)
    return Job(local, channel, consumer, Event(b""), "", 0, 0, token, never, partition)


def _check_held(job_id: str, accepted: Sequence[bool]) -> None:
    if not all(accepted):
        raise LeaseLost([job_id])
