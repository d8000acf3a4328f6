"""Jobs: leased at once or after a long wait, ended, extended, released, and looked at."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Annotated

from fastapi import Request, Response
from pydantic import Field

from holdfast.bus.byte_limits import claim_within
from holdfast.bus.finalize import FailedAttempt
from holdfast.deadletters.items import parse_public
from holdfast.model.decide import describe
from holdfast.model.duration import format_duration, parse_duration
from holdfast.model.errors import InvalidInput, LeaseLost, NotFound, TooLarge
from holdfast.model.event import DEFAULT_SOURCE, Event
from holdfast.model.job import LONGEST_REASON, Job, Retry
from holdfast.server.api.models import (
    Channel,
    Consumer,
    Duration,
    JobId,
    JobName,
    JobOut,
    LeaseOut,
    Model,
    Whole,
    json_response,
    lease_json,
)
from holdfast.server.auth.caller import Caller
from holdfast.server.auth.guard import Consumes, Operates, Reads, Router, check_again
from holdfast.server.bodies import TimeSlice
from holdfast.server.middleware import WAIT
from holdfast.server.system import Known, System

router = Router(tags=["jobs"], prefix="/channels/{channel}/consumers/{consumer}")

LONGEST_WAIT = timedelta(minutes=15)
PAUSE = 1.0
"""The longest wait between two claims: a wake-up may be missed, and a caller may have gone."""

_claims: set[asyncio.Task[list[Job]]] = set()
"""Those under way: a task without a reference may be collected."""
FAILED_AT_ONCE = 200
"""Failures that are sent to the store together: a thousand long errors would hold up the event loop."""


class Poll(Model):
    """How many jobs, and how long to wait for the first."""

    limit: Annotated[int, Field(ge=1, le=1000), Whole] = 1
    """At most so many, and at most `server.limits.batch`."""
    wait: Duration = "0s"
    """At most 15m."""


class Polled(Model):
    """Jobs that are the caller's until their leases end."""

    jobs: list[LeaseOut]


@router.post("/poll", response_model=Polled)
async def poll(
    channel: Channel, consumer: Consumer, body: Poll, request: Request, system: Known, caller: Consumes
) -> Response:
    """Lease jobs, or wait for the first one. Every job must be ended, or comes back with its lease's end. It
    leases fewer where their events reach `server.limits.answer` bytes."""
    limits = system.config.server.limits
    call = _PollCall(system, request, caller, channel, consumer, min(body.limit, limits.batch))
    jobs = await call.jobs(patience(body.wait))
    timeslice = TimeSlice()
    return json_response({"jobs": [await lease_json(each, timeslice) for each in jobs]})


def patience(wait: str) -> float:
    """How many seconds a caller waits."""
    asked = parse_duration(wait, what="wait")
    if asked > LONGEST_WAIT:
        raise InvalidInput(f"wait {wait!r} is too long; use at most {format_duration(LONGEST_WAIT)}")
    return asked.total_seconds()


class _PollCall:
    """One poll. Jobs that its caller cannot get any more are released at once."""

    def __init__(
        self, system: System, request: Request, caller: Caller, channel: str, consumer: str, limit: int
    ) -> None:
        self._system, self._request, self._caller = system, request, caller
        self._channel, self._consumer, self._limit = channel, consumer, limit

    async def jobs(self, seconds: float) -> list[Job]:
        """What there is, or comes within that time."""
        jobs = await self._claim()
        if not jobs and seconds:
            jobs = await self._first(seconds)
        if jobs and await self._request.is_disconnected():
            await self._release(jobs)
        return jobs

    async def _first(self, seconds: float) -> list[Job]:
        """Claim after every wake-up until there is something, the time is over, or nobody waits any more."""
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        self._request.scope[WAIT](seconds)
        async with self._system.wakeups.on(self._channel, self._consumer) as waiter:
            while not (self._system.supervisor.stopping or await self._request.is_disconnected()):
                waiter.woken.clear()
                if not waiter.first:
                    await self._system.wakeups.rechecks.ask(self._caller, self._check)
                elif jobs := await self._claim_checked():
                    return jobs
                if (left := until - loop.time()) <= 0:
                    break
                with suppress(TimeoutError):
                    async with asyncio.timeout(min(left, PAUSE)):
                        await waiter.woken.wait()
        return []

    async def _claim_checked(self) -> list[Job]:
        """Claim for somebody who has waited: a token may have ended meanwhile, also during the claim."""
        await self._check()
        jobs = await self._claim()
        if jobs:
            try:
                await self._check()
            except BaseException:
                await self._release(jobs)
                raise
        return jobs

    async def _check(self) -> None:
        await check_again(self._system, self._caller)

    async def _claim(self) -> list[Job]:
        """Lease jobs in a task of its own: a call that is cancelled meanwhile cannot know what it got."""
        cancelled = asyncio.Event()
        claim = asyncio.create_task(self._claim_unless(cancelled))
        _claims.add(claim)
        claim.add_done_callback(_claims.discard)
        try:
            return await asyncio.shield(claim)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    async def _claim_unless(self, cancelled: asyncio.Event) -> list[Job]:
        bus, size = self._system.bus, self._system.config.server.limits.answer
        jobs, beyond = await claim_within(
            lambda count: bus.poll(self._channel, self._consumer, limit=count), self._limit, size
        )
        if beyond:
            await self._release(beyond)
        if jobs and cancelled.is_set():
            await self._release(jobs)
        return jobs

    async def _release(self, jobs: list[Job]) -> None:
        await self._system.bus.finalizer.retry([Retry(job, None) for job in jobs])


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
    done = await _end(system, channel, consumer, body.jobs)
    return Settled(
        accepted=[each.id for each, yes in zip(body.jobs, done, strict=True) if yes],
        lost=[each.id for each, yes in zip(body.jobs, done, strict=True) if not yes],
    )


@router.post("/jobs/{jobId}/finalize", status_code=204)
async def finalize_job(
    channel: Channel, consumer: Consumer, jobId: JobId, body: Ending, system: Known, caller: Consumes
) -> None:
    """End an attempt: done, or by policy retried or dead. A lost lease is a 409, and changed nothing."""
    named = NamedEnding(id=jobId, **body.model_dump())
    _check_held(jobId, await _end(system, channel, consumer, [named]))


@router.post("/jobs/{jobId}/extend", status_code=204)
async def extend_lease(
    channel: Channel, consumer: Consumer, jobId: JobId, body: Extension, system: Known, caller: Consumes
) -> None:
    """Move a lease's deadline to now plus `by`. A lost lease is a 409."""
    by = parse_duration(body.by, what="by")
    job = await _job(system, channel, consumer, jobId, body.token)
    _check_held(jobId, await system.bus.finalizer.extend([job], by))


@router.post("/jobs/{jobId}/release", status_code=204)
async def release_job(
    channel: Channel, consumer: Consumer, jobId: JobId, body: Held, system: Known, caller: Consumes
) -> None:
    """Give a job back untouched: ready at once, no budget spent. A lost lease is a 409."""
    job = await _job(system, channel, consumer, jobId, body.token)
    _check_held(jobId, await system.bus.finalizer.retry([Retry(job, None)]))


class CancelIn(Model):
    """Which event's job is cancelled, and how."""

    id: str = Field(min_length=1, max_length=512, examples=["o-1"])
    """The event's id."""
    source: str = Field(default=DEFAULT_SOURCE, max_length=512)
    running: bool = False
    """Also where a worker has it: it loses the job at once, and is told to stop."""
    reason: str | None = Field(default=None, min_length=1, max_length=LONGEST_REASON)
    """Kept with the job, with who cancelled it."""


class CancelOut(Model):
    """What came of it."""

    cancelled: int
    """0 where there was nothing to cancel: it has ended, or it is leased and `running` was not asked for."""
    jobs: list[JobOut]
    """The event's job of this consumer, as it is now."""


@router.post("/cancel")
async def cancel_job(
    channel: Channel, consumer: Consumer, body: CancelIn, system: Known, caller: Operates
) -> CancelOut:
    """Cancel an event's job while it waits; with `running` also while a worker has it."""
    source, running, reason = body.source, body.running, body.reason
    cancelled = await system.bus.cancel(
        channel, body.id, source=source, consumer=consumer, running=running, by=caller.actor, reason=reason
    )
    return CancelOut(cancelled=cancelled, jobs=await jobs_of(system, channel, consumer, body.id, source))


async def jobs_of(system: System, channel: str, consumer: str, event_id: str, source: str) -> list[JobOut]:
    """An event's job of one consumer, on whichever store it is. Raises `NotFound`."""
    stores = enumerate(await system.deadletters.stores())
    found = [
        (n, each) for n, store in stores for each in await store.leases.find_jobs(channel, source, event_id)
    ]
    mine = [JobOut.of(each, n) for n, each in found if each.consumer == consumer]
    if not mine:
        raise NotFound(
            f"consumer {consumer!r} of {channel!r} has no job for the event {event_id!r} of {source!r}"
        )
    return mine


@router.get("/jobs/{jobId}")
async def show_job(
    channel: Channel, consumer: Consumer, jobId: JobId, system: Known, caller: Reads
) -> JobOut:
    """One job, live or ended, with every attempt's error."""
    local, partition = parse_public(jobId)
    found = await (await system.deadletters.store(partition)).leases.job(channel, consumer, local)
    if found is None:
        raise NotFound(f"consumer {consumer!r} of channel {channel!r} has no job {jobId}")
    return JobOut.of(found, partition)


async def _end(system: System, channel: str, consumer: str, endings: Sequence[NamedEnding]) -> list[bool]:
    """Whether each ending was accepted, in their order."""
    jobs = [await _job(system, channel, consumer, each.id, each.token) for each in endings]
    timeslice = TimeSlice()
    good = [place for place, each in enumerate(endings) if each.success]
    bad = [place for place, each in enumerate(endings) if not each.success]
    finalizer = system.bus.finalizer
    accepted = dict(zip(good, await finalizer.complete([jobs[place] for place in good]), strict=True))
    for begin in range(0, len(bad), FAILED_AT_ONCE):
        some = bad[begin : begin + FAILED_AT_ONCE]
        failed = []
        for place in some:
            failed.append(await _failed(system, jobs[place], endings[place]))
            await timeslice.pause()  # a store may respond at once
        accepted |= dict(zip(some, await finalizer.fail(failed), strict=True))
    return [accepted[place] for place in range(len(endings))]


async def _failed(system: System, job: Job, ending: Ending) -> FailedAttempt:
    """The number of attempts is the store's, not the caller's."""
    store = await system.deadletters.store(job.partition)
    found = await store.leases.job(job.channel, job.consumer, job.id)
    job.attempt = found.attempts if found is not None else 0
    return FailedAttempt(job, describe(ending.error), ending.terminal)


async def _job(system: System, channel: str, consumer: str, job_id: str, token: int) -> Job:
    """A lease as the caller shows it; the store checks the id and the token."""
    local, partition = parse_public(job_id)
    await system.deadletters.store(partition)
    never = datetime.fromtimestamp(0, UTC)
    return Job(local, channel, consumer, Event(b""), "", 0, 0, token, never, partition)


def _check_held(job_id: str, accepted: Sequence[bool]) -> None:
    if not all(accepted):
        raise LeaseLost([job_id])
