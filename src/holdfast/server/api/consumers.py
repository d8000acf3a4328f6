"""Consumers: the worker consumers of a channel with their policies, and its stream consumers, the cursors."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from typing import Annotated, Any, Literal

from fastapi import Header, Query, Response
from pydantic import Field

from holdfast.contracts import Consumer as Stored
from holdfast.deadletters.items import Filter
from holdfast.deadletters.operation import Request
from holdfast.model.errors import InvalidInput, NotFound, Outdated
from holdfast.model.policy import Policy
from holdfast.server.api.channels import check_channel
from holdfast.server.api.models import (
    AfterName,
    Channel,
    Consumer,
    Duration,
    Limit,
    Model,
    Name,
    Page,
    Time,
    Whole,
)
from holdfast.server.api.operations import OperationOut, accepted
from holdfast.server.auth.caller import Caller
from holdfast.server.auth.guard import Operates, Reads, Router
from holdfast.server.errors import Conflict
from holdfast.server.system import Known, System
from holdfast.upkeep.lock import holding
from holdfast.upkeep.retention import remove_stream, streams, warning

ETAG = '((W/)?"[0-9]{1,35}"|[0-9]{1,35})'
"""A revision as an ETag, as a regular expression."""
IfMatch = Annotated[
    str | None,
    Header(
        max_length=40,
        description="Only if it still has this ETag; `*`: any. Else 412.",
        examples=['"3"'],
        json_schema_extra={"pattern": rf"^(\*|{ETAG})$"},
    ),
]
IfNoneMatch = Annotated[
    str | None,
    Header(
        max_length=40,
        description="`*`: only if there is none yet; else 412.",
        examples=["*"],
        json_schema_extra={"pattern": r"^\*$"},
    ),
]

Condition = Callable[[int], bool]
"""Whether a revision is one that the caller meant; 0: there is none."""
LOCK_TTL = timedelta(seconds=30)

router = Router(tags=["consumers"], prefix="/channels/{channel}/consumers")
cursors_router = Router(tags=["cursors"], prefix="/channels/{channel}/cursors")


def parse_condition(if_match: str | None, if_none_match: str | None = None) -> Condition | None:
    """The condition in the headers of a request, None where there is none. Raises `InvalidInput`."""
    if if_none_match not in (None, "*"):
        raise InvalidInput(f"If-None-Match {if_none_match!r} is not understood; send *, or leave it out")
    if if_none_match is not None:
        return lambda revision: not revision
    if if_match is None:
        return None
    if if_match == "*":
        return bool
    if not re.fullmatch(ETAG, if_match):
        raise InvalidInput(f"If-Match {if_match!r} is no ETag of ours; send it as GET answered it")
    number = int(if_match.removeprefix("W/").strip('"'))
    return lambda revision: revision == number


def check_revision(asked: Condition | None, revision: int, consumer: str) -> None:
    """Raise `Outdated` where a consumer is not as the caller meant it."""
    if asked is not None and not asked(revision):
        now = f"has the revision {revision}" if revision else "does not exist"
        raise Outdated(f"consumer {consumer!r} {now}; look at it again, then change it")


@asynccontextmanager
async def exclusively(
    system: System, channel: str, consumer: str, asked: Condition | None
) -> AsyncIterator[None]:
    """With a condition, nobody else who has one changes the consumer while the block runs: a policy, a pause
    and a name are three steps, and of two callers who saw the same revision one must lose."""
    if asked is None:
        yield
        return
    first, name = await system.deadletters.store(0), f"consumer:{channel}/{consumer}"
    async with holding(first, name, system.bus.name, LOCK_TTL) as lock:
        if lock is None:
            raise Outdated(f"somebody else is changing consumer {consumer!r}; look at it again")
        yield


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


class JobCounts(Model):
    """What would be removed or cancelled."""

    jobs: dict[str, int]
    """By state; nothing was changed."""


@router.get("")
async def list_consumers(
    channel: Channel, system: Known, caller: Reads, limit: Limit = 100, after: AfterName = None
) -> Page[ConsumerOut]:
    """The worker consumers of a channel by name."""
    first = await system.deadletters.store(0)
    await check_channel(first, channel)
    found = sorted(await first.channels.consumers(channel), key=lambda each: each.name)
    rest = [each for each in found if after is None or each.name > after]
    shown = [ConsumerOut.of(each) for each in rest[:limit]]
    return Page(items=shown, after=shown[-1].name if len(rest) > limit else None)


@router.get("/{consumer}")
async def show_consumer(
    channel: Channel, consumer: Consumer, system: Known, response: Response, caller: Reads
) -> ConsumerOut:
    """One worker consumer. Its ETag guards a later change."""
    return await _shown(system, channel, consumer, response)


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
    asked, policy = parse_condition(if_match, if_none_match), body.policy()
    async with exclusively(system, channel, consumer, asked):
        there = await _revision_of(system, channel, consumer)
        check_revision(asked, there, consumer)
        if not there:
            await system.capacity.check_consumer(caller, await system.deadletters.store(0), channel)
        first, *others = await system.deadletters.stores()
        await first.channels.subscribe(
            channel, consumer, policy, body.start, revision=there if asked else None
        )
        for store in others:
            await store.channels.subscribe(channel, consumer, policy, body.start)
        for store in (first, *others):
            if body.paused is not None:
                await store.channels.set_paused(channel, consumer, body.paused)
            if body.display_name is not None:
                await store.channels.set_display(channel, consumer, body.display_name)
    await system.audit.did(caller.actor, "put consumer", f"{channel}/{consumer}")
    response.status_code = 200 if there else 201
    return await _shown(system, channel, consumer, response)


@router.delete(
    "/{consumer}",
    status_code=202,
    response_model=OperationOut,
    responses={200: {"model": JobCounts, "description": "A dry run: what would go along"}},
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
    request = Request("remove_consumer", Filter.of(channel=channel, consumer=consumer))
    return await _asked(system, caller, request, response, dry_run, if_match)


@router.post(
    "/{consumer}/empty",
    status_code=202,
    response_model=OperationOut,
    responses={200: {"model": JobCounts, "description": "A dry run: what would be cancelled"}},
)
async def empty_consumer(
    channel: Channel,
    consumer: Consumer,
    system: Known,
    response: Response,
    caller: Operates,
    dry_run: Annotated[bool, Query(description="Only tell what would be cancelled.")] = False,
    if_match: IfMatch = None,
) -> OperationOut | Response:
    """Cancel every job of a worker consumer that waits, ready or scheduled, as it is when that begins. Leased
    jobs go on, and what is published later is delivered."""
    request = Request("empty_consumer", Filter.of(channel=channel, consumer=consumer))
    return await _asked(system, caller, request, response, dry_run, if_match)


async def _asked(
    system: System, caller: Caller, request: Request, response: Response, dry_run: bool, if_match: str | None
) -> OperationOut | Response:
    """An operation on a consumer, or with `dry_run` the jobs that it is about."""
    where = (request.filter or Filter()).where
    channel, consumer = where.channel or "", where.consumer or ""
    stored = await (await system.deadletters.store(0)).channels.consumer(channel, consumer)
    check_revision(parse_condition(if_match, None), stored.revision, consumer)
    if dry_run:
        jobs = await system.operations.jobs_of(request)
        found = JobCounts(jobs={state.value: count for state, count in jobs.items()})
        return Response(found.model_dump_json(), 200, media_type="application/json")
    return accepted(await system.operations.ask(request, caller.actor, caller.scopes), response)


async def _shown(system: System, channel: str, consumer: str, response: Response) -> ConsumerOut:
    stored = await (await system.deadletters.store(0)).channels.consumer(channel, consumer)
    response.headers["ETag"] = f'"{stored.revision}"'
    return ConsumerOut.of(stored)


async def _revision_of(system: System, channel: str, consumer: str) -> int:
    """Which revision it has; 0 where there is none."""
    try:
        return (await (await system.deadletters.store(0)).channels.consumer(channel, consumer)).revision
    except NotFound:
        return 0


class CursorOut(Model):
    """A stream consumer, such as the archiver, on one store."""

    channel: str
    consumer: str
    partition: int
    position: str | None
    """Its sink is durable up to here; null: nothing yet."""
    moved_at: datetime
    behind: int
    """Events after it, counted up to 1,000,000: retention keeps them for it."""
    oldest: datetime | None
    """When the first of them was published."""


@cursors_router.get("")
async def list_cursors(channel: Channel, system: Known, caller: Reads) -> list[CursorOut]:
    """The stream consumers of a channel, on every store."""
    found = await streams(await system.deadletters.stores(), channel)
    return [CursorOut(**each._asdict()) for each in found]


@cursors_router.delete("/{consumer}")
async def delete_cursor(
    channel: Channel,
    consumer: Consumer,
    system: Known,
    caller: Operates,
    dry_run: Annotated[bool, Query(description="Only tell what would go.")] = False,
    force: Annotated[bool, Query(description="Also where it has events left to read.")] = False,
) -> list[CursorOut]:
    """Remove a stream consumer that is gone for good; what it was is answered.

    Retention keeps what it has not read. Where there is some, it needs `force`: it may be trimmed then.
    """
    stores = await system.deadletters.stores()
    found = await streams(stores, channel, consumer)
    if not dry_run:
        if any(each.behind for each in found) and not force:
            raise Conflict(f"{warning(found)}; send force=true to remove it all the same")
        await remove_stream(stores, channel, consumer)
        await system.audit.did(caller.actor, "remove cursor", f"{channel}/{consumer}")
    return [CursorOut(**each._asdict()) for each in found]
