"""Consumers: their policies, their pause, and their end with everything that is theirs."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from fastapi import Depends, Query, Response
from pydantic import Field

from holdfast.contracts import Consumer as Stored
from holdfast.deadletters.items import Filter
from holdfast.deadletters.operation import Request
from holdfast.model.errors import NotFound
from holdfast.model.policy import Policy
from holdfast.server.admission import Router
from holdfast.server.api.channels import check_channel
from holdfast.server.api.conditions import IfMatch, IfNoneMatch, alone, check, condition
from holdfast.server.api.models import Duration, Model, Time, Whole
from holdfast.server.api.operations import OperationOut, accepted
from holdfast.server.auth.caller import Caller
from holdfast.server.auth.guard import needs
from holdfast.server.context import Known, System
from holdfast.server.parameters import AfterName, Channel, Consumer, Limit, Name, Page

router = Router(tags=["consumers"], prefix="/channels/{channel}/consumers")

Reads = Annotated[Caller, Depends(needs("read"))]
Operates = Annotated[Caller, Depends(needs("operate"))]


class ConsumerOut(Model):
    """A worker consumer."""

    channel: str
    name: str
    display_name: str
    paused: bool
    policy: dict[str, Any]
    created_at: datetime
    revision: int
    """Rises with every change; the ETag."""

    @classmethod
    def of(cls, stored: Stored) -> ConsumerOut:
        """From what is stored."""
        return cls(
            channel=stored.channel,
            name=stored.name,
            display_name=stored.display or stored.name,
            paused=stored.paused,
            policy=stored.policy.to_json(),
            created_at=stored.created_at,
            revision=stored.revision,
        )


class ConsumerIn(Model):
    """A worker consumer: what is left out of its policy has its default; `start`, `display_name` and `paused`
    are no part of that."""

    max_attempts: Annotated[int, Field(ge=1, le=10_000), Whole] | Literal["unlimited"] = 5
    max_abandonments: Annotated[int, Field(ge=1, le=10_000), Whole] = 3
    max_runs: Annotated[int, Field(ge=1, le=10_000), Whole] | None = None
    """The most attempts and abandonments together."""
    lease: Duration = "5m"
    """At least 100ms."""
    backoff: list[Duration] | None = Field(default=None, min_length=1, max_length=100)
    """Waits between attempts, the last one repeats. Without it they double, with jitter."""
    expires_after: Duration | None = None
    """More than 0s."""
    dead_letter: Name | None = None
    """A channel; not together with `"on_dead": "discard"`."""
    on_dead: Literal["keep", "discard"] = "keep"
    ordered: bool = False
    max_depth: Annotated[int, Field(ge=1, le=2**53 - 1), Whole] | None = None
    start: Literal["latest", "earliest"] | Time = "latest"
    """From where on a new one gets jobs."""
    display_name: str | None = Field(default=None, max_length=255)
    """A name for people; null leaves it, empty takes it away."""
    paused: bool | None = None
    """Whether it hands out no jobs; null leaves it."""

    def policy(self) -> Policy:
        """The policy, checked."""
        return Policy.of(**self.model_dump(exclude={"start", "display_name", "paused"}))


class Removed(Model):
    """What would go along."""

    jobs: dict[str, int]
    """By state; nothing was changed."""


@router.get("")
async def list_consumers(
    channel: Channel, system: Known, caller: Reads, limit: Limit = 100, after: AfterName = None
) -> Page[ConsumerOut]:
    """The worker consumers of a channel by name."""
    first = await system.letters.store(0)
    await check_channel(first, channel)
    found = sorted(await first.consumers(channel), key=lambda each: each.name)
    rest = [each for each in found if after is None or each.name > after]
    shown = [ConsumerOut.of(each) for each in rest[:limit]]
    return Page(items=shown, after=shown[-1].name if len(rest) > limit else None)


@router.get("/{consumer}")
async def show_consumer(
    channel: Channel, consumer: Consumer, system: Known, response: Response, caller: Reads
) -> ConsumerOut:
    """One worker consumer. Its ETag guards a later change."""
    return await _answer(system, channel, consumer, response)


@router.put("/{consumer}", responses={201: {"model": ConsumerOut, "description": "It is new"}})
async def put_consumer(
    channel: Channel,
    consumer: Consumer,
    body: ConsumerIn,
    system: Known,
    response: Response,
    caller: Operates,
    if_match: IfMatch = None,
    if_none_match: IfNoneMatch = None,
) -> ConsumerOut:
    """Create a worker consumer, or give it another policy."""
    if body.dead_letter is not None:
        caller.require("publish", body.dead_letter)  # its dead letters are published there
    asked, policy = condition(if_match, if_none_match), body.policy()
    async with alone(system, channel, consumer, asked):
        there = await _revision_of(system, channel, consumer)
        check(asked, there, consumer)
        if not there:
            await system.capacity.check_consumer(caller, await system.letters.store(0), channel)
        first, *others = await system.letters.stores()
        await first.subscribe(channel, consumer, policy, body.start, revision=there if asked else None)
        for store in others:
            await store.subscribe(channel, consumer, policy, body.start)
        for store in (first, *others):
            if body.paused is not None:
                await store.set_paused(channel, consumer, body.paused)
            if body.display_name is not None:
                await store.set_display(channel, consumer, body.display_name)
    await system.audit.did(caller.actor, "put consumer", f"{channel}/{consumer}")
    response.status_code = 200 if there else 201
    return await _answer(system, channel, consumer, response)


@router.delete(
    "/{consumer}",
    status_code=202,
    response_model=OperationOut,
    responses={200: {"model": Removed, "description": "A dry run: what would go along"}},
)
async def delete_consumer(
    channel: Channel,
    consumer: Consumer,
    system: Known,
    response: Response,
    caller: Operates,
    dry_run: Annotated[bool, Query(description="Only tell what would go along.")] = False,
    if_match: IfMatch = None,
) -> OperationOut | Response:
    """Remove a worker consumer with its jobs, its dead letters, its history and their counts."""
    stored = await (await system.letters.store(0)).consumer(channel, consumer)
    check(condition(if_match, None), stored.revision, consumer)
    wanted = Filter.of(channel=channel, consumer=consumer)
    if dry_run:
        jobs = await system.operations.jobs_of(wanted)
        found = Removed(jobs={state.value: count for state, count in jobs.items()})
        return Response(found.model_dump_json(), 200, media_type="application/json")
    operation = await system.operations.ask(Request("remove_consumer", wanted), caller.actor, caller.scopes)
    return accepted(operation, response)


async def _answer(system: System, channel: str, consumer: str, response: Response) -> ConsumerOut:
    stored = await (await system.letters.store(0)).consumer(channel, consumer)
    response.headers["ETag"] = f'"{stored.revision}"'
    return ConsumerOut.of(stored)


async def _revision_of(system: System, channel: str, consumer: str) -> int:
    """Which revision it has; 0 where there is none."""
    try:
        return (await (await system.letters.store(0)).consumer(channel, consumer)).revision
    except NotFound:
        return 0
