"""Schedules: an event at every tick of a clock; made, looked at, paused, run and removed."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any

from fastapi import Path, Query, Response
from pydantic import ConfigDict, Field

from holdfast.bus.schedules import DEFAULT_MISSED, DEFAULT_MOST
from holdfast.deadletters.payloads import readable
from holdfast.model.event import SAFE
from holdfast.model.names import LONGEST, NAME
from holdfast.server.api.models import (
    AfterName,
    Channel,
    ContentIn,
    Duration,
    Limit,
    Model,
    Name,
    Page,
    ReceiptOut,
    Whole,
    shape,
)
from holdfast.server.auth.caller import Caller
from holdfast.server.auth.guard import Operates, Reads, ReadsFiltered, Router
from holdfast.server.system import Known, System
from holdfast.upkeep.schedules import MOST_MISSED, Missed, Schedule

router = Router(tags=["schedules"], prefix="/channels/{channel}/schedules")
all_router = Router(tags=["schedules"])

ScheduleName = Annotated[Name, Path(description="The schedule.", examples=["nightly"])]
AfterSchedule = Annotated[
    str | None,
    Query(
        max_length=2 * LONGEST + 1,
        pattern=f"^{NAME}/{NAME}$",
        description="Where the page before ended: its `after`.",
    ),
]


class ScheduleIn(ContentIn):
    """A schedule: what is left out has its default. It has either `cron` or `every`."""

    cron: str | None = Field(default=None, max_length=256, examples=["0 3 * * *"])
    """Minute, hour, day, month and weekday."""
    every: Duration | None = Field(default=None, examples=[None])
    """At least 1s."""
    tz: str | None = Field(default=None, max_length=64, examples=["Europe/Berlin"])
    """The time zone of `cron`; UTC where it is left out."""
    priority: Annotated[int, Field(ge=-100, le=100), Whole] = 0
    jitter: Duration = "0s"
    """Each tick is delayed by up to so much, always the same for one tick."""
    missed: Missed = DEFAULT_MISSED
    """Ticks while nobody kept time: none is published, the latest, or the latest `max_missed`."""
    max_missed: Annotated[int, Field(ge=1, le=MOST_MISSED), Whole] = DEFAULT_MOST

    def definition(self) -> dict[str, Any]:
        """As the bus takes it."""
        names = (
            "cron",
            "every",
            "tz",
            "type",
            "key",
            "headers",
            "priority",
            "jitter",
            "missed",
            "max_missed",
        )
        return {"data": self.content(), **{name: getattr(self, name) for name in names}}


class ScheduleOut(Model):
    """A schedule without its data."""

    name: str
    channel: str
    cron: str | None
    every: str | None
    tz: str | None
    jitter: str
    missed: Missed
    max_missed: int
    type: str
    key: str | None
    headers: dict[str, str]
    priority: int
    paused: bool
    created_at: datetime
    last: datetime | None
    """The last tick that was published."""
    next: datetime | None
    """The next tick; null: it is paused, or there are no more."""
    due: datetime | None
    """When that one is published: with its jitter, or after the pause that follows an error."""
    fired: int
    skipped: int
    """Ticks that were missed and not published."""
    failures: int
    """Tries to publish since the last one that succeeded."""
    error: str
    """Why the last one failed; empty: it did not."""
    error_at: datetime | None


class ScheduleShown(ScheduleOut):
    """The same, with when its next ten ticks are due, and its data: `data` where it is JSON, else
    `data_base64`."""

    model_config = ConfigDict(extra="allow")

    upcoming: list[datetime]


class Preview(Model):
    """When the next ten ticks would be due; nothing was changed."""

    upcoming: list[datetime]


class RunIn(Model):
    """A run that somebody asks for."""

    id: str = Field(default="", max_length=256, examples=["2030-01-31"], json_schema_extra=shape(SAFE))
    """Asking again with the same id changes nothing; without one the server makes it."""


@all_router.get("/schedules")
async def list_all_schedules(
    system: Known, caller: ReadsFiltered, limit: Limit = 100, after: AfterSchedule = None
) -> Page[ScheduleOut]:
    """The schedules of all channels, by channel and name."""
    found = [each for each in await system.bus.schedules() if caller.sees(each.channel)]
    return _page(found, limit, after, by_channel=True)


@router.get("")
async def list_schedules(
    channel: Channel, system: Known, caller: Reads, limit: Limit = 100, after: AfterName = None
) -> Page[ScheduleOut]:
    """The schedules of a channel, by name."""
    return _page(await system.bus.schedules(channel), limit, after, by_channel=False)


@router.get("/{schedule}")
async def show_schedule(
    channel: Channel, schedule: ScheduleName, system: Known, caller: Reads
) -> ScheduleShown:
    """One schedule, with its next ten ticks."""
    return await _shown(system, await system.bus.scheduling.get(schedule, channel))


@router.put(
    "/{schedule}",
    response_model=ScheduleShown | Preview,
    responses={201: {"model": ScheduleShown, "description": "It is new"}},
)
async def put_schedule(
    channel: Channel,
    schedule: ScheduleName,
    body: ScheduleIn,
    system: Known,
    response: Response,
    caller: Operates,
    dry_run: Annotated[bool, Query(description="Only tell the next ten ticks.")] = False,
) -> ScheduleShown | Preview:
    """Make a schedule, or give it another definition. One that says the same already stays as it is."""
    caller.require("publish", channel)
    definition, scheduling = body.definition(), system.bus.scheduling
    if dry_run:
        return Preview(upcoming=await scheduling.preview(schedule, channel, **definition))
    known = {each.name for each in await system.bus.schedules(channel)}
    await check_capacity(system, caller, channel, schedule, known)
    made = await scheduling.put(schedule, channel, **definition)
    await system.audit.did(caller.actor, "put schedule", f"{channel}/{schedule}")
    response.status_code = 200 if schedule in known else 201
    return await _shown(system, made)


@router.post("/{schedule}/pause")
async def pause_schedule(
    channel: Channel, schedule: ScheduleName, system: Known, caller: Operates
) -> ScheduleShown:
    """Publish no more ticks until it is resumed."""
    paused = await system.bus.pause_schedule(schedule, channel)
    await system.audit.did(caller.actor, "pause schedule", f"{channel}/{schedule}")
    return await _shown(system, paused)


@router.post("/{schedule}/resume")
async def resume_schedule(
    channel: Channel, schedule: ScheduleName, system: Known, caller: Operates
) -> ScheduleShown:
    """Go on with the first tick after now."""
    resumed = await system.bus.resume_schedule(schedule, channel)
    await system.audit.did(caller.actor, "resume schedule", f"{channel}/{schedule}")
    return await _shown(system, resumed)


@router.post(
    "/{schedule}/run",
    status_code=201,
    responses={200: {"model": ReceiptOut, "description": "It was asked for before"}},
)
async def run_schedule(
    channel: Channel,
    schedule: ScheduleName,
    body: RunIn,
    system: Known,
    response: Response,
    caller: Operates,
) -> ReceiptOut:
    """Publish what a tick would, now, also of a paused one. Its ticks stay as they are."""
    caller.require("publish", channel)
    receipt = await system.bus.run_schedule(schedule, channel, id=body.id or None)
    await system.audit.did(caller.actor, "run schedule", f"{channel}/{schedule}")
    response.status_code = 200 if receipt.duplicate else 201
    return ReceiptOut.of(receipt)


@router.delete("/{schedule}", status_code=204)
async def delete_schedule(channel: Channel, schedule: ScheduleName, system: Known, caller: Operates) -> None:
    """Remove a schedule for good. What it has published stays."""
    await system.bus.remove_schedule(schedule, channel)
    await system.audit.did(caller.actor, "remove schedule", f"{channel}/{schedule}")


async def check_capacity(
    system: System, caller: Caller, channel: str, schedule: str, known: set[str]
) -> None:
    """Raise `Conflict` where a new schedule would be one more than there may be."""
    await system.capacity.check_channel(caller, channel)
    if schedule not in known:
        system.capacity.check_schedules(caller, channel, len(known))


async def _shown(system: System, schedule: Schedule) -> ScheduleShown:
    upcoming = await system.bus.scheduling.upcoming(schedule)
    return ScheduleShown(**schedule.to_json(), **readable("data", schedule.content.data), upcoming=upcoming)


def _page(found: Sequence[Schedule], limit: int, after: str | None, *, by_channel: bool) -> Page[ScheduleOut]:
    named = {f"{each.channel}/{each.name}" if by_channel else each.name: each for each in found}
    rest = [(name, named[name]) for name in sorted(named) if after is None or name > after]
    shown = [ScheduleOut(**each.to_json()) for _, each in rest[:limit]]
    return Page(items=shown, after=rest[limit - 1][0] if len(rest) > limit else None)
