"""Polls: jobs are leased at once, or after a long wait for the first one."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import timedelta
from typing import Annotated

from fastapi import Depends, Request, Response
from pydantic import Field

from holdfast.bus.budget import claim_within
from holdfast.model.duration import format_duration, parse_duration
from holdfast.model.errors import InvalidInput
from holdfast.model.job import Job, Retry
from holdfast.server.admission import Router
from holdfast.server.answers import answer, lease_of
from holdfast.server.api.models import Duration, LeaseOut, Model, Whole
from holdfast.server.auth.caller import Caller
from holdfast.server.auth.guard import check_again, needs
from holdfast.server.context import Known, System
from holdfast.server.limits import WAIT
from holdfast.server.parameters import Channel, Consumer
from holdfast.server.turns import Turns

router = Router(tags=["jobs"], prefix="/channels/{channel}/consumers/{consumer}")

LONGEST = timedelta(minutes=15)
PAUSE = 1.0
"""The longest wait between two looks: a wake-up may be missed, and a caller may have gone."""

_claims: set[asyncio.Task[list[Job]]] = set()
"""Those under way: a task that nobody holds may vanish."""


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
    channel: Channel,
    consumer: Consumer,
    body: Poll,
    request: Request,
    system: Known,
    caller: Annotated[Caller, Depends(needs("consume"))],
) -> Response:
    """Lease jobs, or wait for the first one. Every job must be ended, or comes back with its lease's end. It
    leases fewer where their events reach `server.limits.answer` bytes."""
    limits = system.config.server.limits
    call = _Call(system, request, caller, channel, consumer, min(body.limit, limits.batch))
    jobs = await call.jobs(patience(body.wait))
    turns = Turns()
    return answer({"jobs": [await lease_of(each, turns) for each in jobs]})


def patience(wait: str) -> float:
    """How many seconds a caller waits."""
    asked = parse_duration(wait, what="wait")
    if asked > LONGEST:
        raise InvalidInput(f"wait {wait!r} is too long; use at most {format_duration(LONGEST)}")
    return asked.total_seconds()


class _Call:
    """One poll. What its caller cannot be told any more goes back, and waits for no lease to end."""

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
            await self._give_back(jobs)
        return jobs

    async def _first(self, seconds: float) -> list[Job]:
        """Look after every wake-up until there is something, the time is over, or nobody waits any more."""
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        self._request.scope[WAIT](seconds)
        async with self._system.waking.on(self._channel, self._consumer) as turn:
            while not (self._system.supervisor.stopping or await self._request.is_disconnected()):
                turn.woken.clear()
                if not turn.first:
                    await self._system.waking.rechecks.ask(self._caller, self._check)
                elif jobs := await self._look():
                    return jobs
                if (left := until - loop.time()) <= 0:
                    break
                with suppress(TimeoutError):
                    async with asyncio.timeout(min(left, PAUSE)):
                        await turn.woken.wait()
        return []

    async def _look(self) -> list[Job]:
        """Claim for somebody who has waited: a token may have ended meanwhile, also during the claim."""
        await self._check()
        jobs = await self._claim()
        if jobs:
            try:
                await self._check()
            except BaseException:
                await self._give_back(jobs)
                raise
        return jobs

    async def _check(self) -> None:
        await check_again(self._system, self._caller)

    async def _claim(self) -> list[Job]:
        """Lease jobs in a task of its own: whoever is cut off meanwhile cannot know what it got."""
        cut = asyncio.Event()
        claim = asyncio.create_task(self._claim_unless(cut))
        _claims.add(claim)
        claim.add_done_callback(_claims.discard)
        try:
            return await asyncio.shield(claim)
        except asyncio.CancelledError:
            cut.set()
            raise

    async def _claim_unless(self, cut: asyncio.Event) -> list[Job]:
        bus, size = self._system.bus, self._system.config.server.limits.answer
        jobs, beyond = await claim_within(
            lambda count: bus.poll(self._channel, self._consumer, limit=count), self._limit, size
        )
        if beyond:
            await self._give_back(beyond)
        if jobs and cut.is_set():
            await self._give_back(jobs)
        return jobs

    async def _give_back(self, jobs: list[Job]) -> None:
        await self._system.bus.settlement.retry([Retry(job, None) for job in jobs])
