"""Schedules: all of them, one with its next ten ticks, and the form that shows them before it is saved."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated, Any, Literal
from urllib.parse import quote

from fastapi import APIRouter, Form, Request, Response
from fastapi.responses import RedirectResponse

from holdfast.bus.schedules import DEFAULT_MISSED, DEFAULT_MOST
from holdfast.deadletters.payloads import exact_json, is_json
from holdfast.model.duration import format_duration
from holdfast.model.errors import InvalidInput
from holdfast.model.event import DEFAULT_TYPE, new_id
from holdfast.server.api.models import Channel
from holdfast.server.api.schedules import ScheduleName, check_capacity
from holdfast.server.pages import formatting
from holdfast.server.pages.layout import (
    PageOperates,
    PageOperatesFiltered,
    PageReads,
    PageReadsFiltered,
    PageRoute,
    page,
)
from holdfast.server.problems import problem
from holdfast.server.system import Known, System
from holdfast.upkeep.schedules import GRACE, Schedule
from holdfast.upkeep.timing import zone

router = APIRouter(route_class=PageRoute, include_in_schema=False)

SHOWN = 200
"""How many schedules there is room for on a page."""
FIELDS = {
    "name": "",
    "channel": "",
    "cron": "",
    "every": "",
    "tz": "",
    "data": "",
    "type": DEFAULT_TYPE,
    "key": "",
    "headers": "",
    "priority": "0",
    "jitter": "",
    "missed": DEFAULT_MISSED,
    "max_missed": str(DEFAULT_MOST),
}
"""The fields of the form, each with what it says at first."""
QUESTIONS = {
    "run": "An event is published now, as a tick would. Its ticks stay as they are.",
    "remove": "It publishes no more. What it has published stays, and so do its channel and its consumers.",
}


@dataclass(frozen=True, slots=True)
class Tick:
    """When a tick is due, in UTC and in the schedule's own time."""

    at: datetime
    local: str

    @classmethod
    def of(cls, at: datetime, tz: str) -> Tick:
        """Its own time is empty where that is UTC, or a zone that this machine does not know."""
        try:
            local = "" if tz == "UTC" else f"{at.astimezone(zone(tz)):%a %Y-%m-%d %H:%M:%S %Z}"
        except InvalidInput:
            local = ""
        return cls(at, local)


@dataclass(frozen=True, slots=True)
class ScheduleRow:
    """A schedule in a list."""

    schedule: Schedule
    state: str
    tone: str
    due: datetime | None

    @classmethod
    def of(cls, schedule: Schedule, now: datetime) -> ScheduleRow:
        """What the list says of it at a time."""
        if schedule.paused:
            return cls(schedule, "paused", "wait", None)
        if schedule.error:
            return cls(schedule, "failing", "bad", schedule.due)
        if schedule.next is None:
            return cls(schedule, "ended", "calm", None)
        if schedule.due <= now - GRACE:
            return cls(schedule, "overdue", "bad", schedule.due)
        return cls(schedule, "on time", "good", schedule.due)


@dataclass(frozen=True, slots=True)
class ScheduleForm:
    """What somebody has written into the form."""

    given: dict[str, str] = field(default_factory=lambda: dict(FIELDS))
    new: bool = True

    @classmethod
    async def read(cls, request: Request) -> ScheduleForm:
        """From the body of a request."""
        sent = await request.form()
        given = {name: str(sent.get(name, first)).strip() for name, first in FIELDS.items()}
        return cls(given, new=not sent.get("known"))

    @classmethod
    def of(cls, schedule: Schedule) -> ScheduleForm:
        """Of a schedule that is there."""
        timing, content = schedule.timing, schedule.content
        said: dict[str, str | None] = {
            "name": schedule.name,
            "channel": schedule.channel,
            "cron": timing.cron,
            "every": None if timing.every is None else format_duration(timing.every),
            "tz": timing.tz if timing.cron else None,
            "data": formatting.payload(content.data, whole=True).text,
            "type": content.type,
            "key": content.key,
            "headers": "\n".join(f"{name}={value}" for name, value in content.headers.items()),
            "priority": str(content.priority),
            "jitter": format_duration(timing.jitter) if timing.jitter else None,
            "missed": schedule.missed,
            "max_missed": str(schedule.max_missed),
        }
        return cls({name: text or "" for name, text in said.items()}, new=False)

    def definition(self) -> dict[str, Any]:
        """As the bus takes it. Raises `InvalidInput`."""
        said = {name: text for name, text in self.given.items() if text and name not in ("name", "channel")}
        said = {"missed": DEFAULT_MISSED, **said}
        return said | {
            "data": _json(self.given["data"]),
            "headers": _headers(self.given["headers"]),
            "priority": _whole("priority", self.given["priority"] or "0"),
            "max_missed": _whole("max_missed", self.given["max_missed"] or str(DEFAULT_MOST)),
        }


@router.get("/schedules")
async def schedules(request: Request, system: Known, viewer: PageReadsFiltered, q: str = "") -> Response:
    """All schedules, the next one that is due first; a search by a part of their names."""
    found = [each for each in await system.bus.schedules() if viewer.caller.sees(each.channel)]
    now = await _now(system)
    rows = [ScheduleRow.of(each, now) for each in found if q in each.name or q in each.channel]
    context: dict[str, Any] = {"rows": rows[:SHOWN], "left": len(rows[SHOWN:]), "q": q, "now": now}
    return page(request, "schedules.html", viewer, **context)


@router.get("/schedules/new")
async def new_schedule(request: Request, viewer: PageOperatesFiltered) -> Response:
    """An empty form."""
    return page(request, "schedule_form.html", viewer, form=ScheduleForm(), ticks=None, error="")


@router.post("/schedules")
async def save_schedule(request: Request, system: Known, viewer: PageOperatesFiltered) -> Response:
    """Show the next ten ticks of what is written; or save it, once they were shown."""
    form = await ScheduleForm.read(request)
    name, channel = form.given["name"], form.given["channel"]
    viewer.caller.require("operate", channel)
    viewer.caller.require("publish", channel)
    scheduling, ticks = system.bus.scheduling, list[Tick]()
    try:
        definition = form.definition()
        seen = await scheduling.preview(name, channel, **definition)
        ticks = [Tick.of(each, form.given["tz"] or "UTC") for each in seen]
        if (await request.form()).get("go") == "save":
            known = {each.name for each in await system.bus.schedules(channel)}
            await check_capacity(system, viewer.caller, channel, name, known)
            await scheduling.put(name, channel, **definition)
            await system.audit.did(viewer.caller.actor, "put schedule", f"{channel}/{name}")
            return RedirectResponse(f"{_path(channel, name)}?notice=saved", 303)
    except InvalidInput as error:
        status = problem(error, request.scope).status_code
        context: dict[str, Any] = {"form": form, "ticks": None, "error": str(error)}
        return page(request, "schedule_form.html", viewer, status=status, **context)
    return page(request, "schedule_form.html", viewer, form=form, ticks=ticks, error="")


@router.get("/channels/{channel}/schedules/{schedule}")
async def schedule_page(
    request: Request, channel: Channel, schedule: ScheduleName, system: Known, viewer: PageReads
) -> Response:
    """One schedule with its next ten ticks."""
    found = await system.bus.scheduling.get(schedule, channel)
    upcoming, now = await system.bus.scheduling.upcoming(found), await _now(system)
    context: dict[str, Any] = {
        "row": ScheduleRow.of(found, now),
        "ticks": [Tick.of(each, found.timing.tz) for each in upcoming],
        "payload": formatting.payload(found.content.data),
        "editable": is_json(found.content.data),
        "now": now,
    }
    return page(request, "schedule.html", viewer, **context)


@router.get("/channels/{channel}/schedules/{schedule}/edit")
async def edit_schedule(
    request: Request, channel: Channel, schedule: ScheduleName, system: Known, viewer: PageOperates
) -> Response:
    """The form with what it says now."""
    found = await system.bus.scheduling.get(schedule, channel)
    if not is_json(found.content.data):
        raise InvalidInput(f"the data of schedule {schedule!r} is no JSON; change it in Python or over REST")
    form = ScheduleForm.of(found)
    return page(request, "schedule_form.html", viewer, form=form, ticks=None, error="")


@router.get("/channels/{channel}/schedules/{schedule}/ask")
async def ask_schedule(
    request: Request,
    channel: Channel,
    schedule: ScheduleName,
    system: Known,
    viewer: PageOperates,
    act: Literal["run", "remove"] = "run",
) -> Response:
    """What it means to run or to remove it, before it is done."""
    found = await system.bus.scheduling.get(schedule, channel)
    context: dict[str, Any] = {"schedule": found, "act": act, "words": QUESTIONS[act], "run": new_id()}
    return page(request, "schedule_ask.html", viewer, **context)


@router.post("/channels/{channel}/schedules/{schedule}/pause")
async def pause_schedule_page(
    channel: Channel,
    schedule: ScheduleName,
    system: Known,
    viewer: PageOperates,
    paused: Annotated[bool, Form()],
) -> Response:
    """Publish no more of its ticks, or go on."""
    verb = system.bus.pause_schedule if paused else system.bus.resume_schedule
    await verb(schedule, channel)
    what = "pause" if paused else "resume"
    await system.audit.did(viewer.caller.actor, f"{what} schedule", f"{channel}/{schedule}")
    return RedirectResponse(f"{_path(channel, schedule)}?notice={what}d", 303)


@router.post("/channels/{channel}/schedules/{schedule}/run")
async def run_schedule_page(
    channel: Channel,
    schedule: ScheduleName,
    system: Known,
    viewer: PageOperates,
    run: Annotated[str, Form(max_length=256)] = "",
) -> Response:
    """Publish an event now. The question's id makes a second click a repeat."""
    viewer.caller.require("publish", channel)
    await system.bus.run_schedule(schedule, channel, id=run or None)
    await system.audit.did(viewer.caller.actor, "run schedule", f"{channel}/{schedule}")
    return RedirectResponse(f"{_path(channel, schedule)}?notice=published", 303)


@router.post("/channels/{channel}/schedules/{schedule}/remove")
async def remove_schedule_page(
    channel: Channel, schedule: ScheduleName, system: Known, viewer: PageOperates
) -> Response:
    """Remove it for good."""
    await system.bus.remove_schedule(schedule, channel)
    await system.audit.did(viewer.caller.actor, "remove schedule", f"{channel}/{schedule}")
    return RedirectResponse("/schedules?notice=removed", 303)


def _path(channel: str, schedule: str) -> str:
    return f"/channels/{quote(channel)}/schedules/{quote(schedule)}"


async def _now(system: System) -> datetime:
    return await (await system.deadletters.store(0)).now()


def _json(text: str) -> bytes | None:
    """The data as it was written, if it is JSON."""
    if not text:
        return None
    try:
        exact_json(text.encode())
    except (ValueError, RecursionError) as error:
        raise InvalidInput(
            f'the data is no JSON: {error}; write a value such as {{"n": 1}}, or a text in quotes'
        ) from None
    return text.replace("\r\n", "\n").encode()


def _headers(text: str) -> dict[str, str]:
    pairs = [line.partition("=") for line in text.splitlines() if line.strip()]
    if any(not equals or not name.strip() for name, equals, _ in pairs):
        raise InvalidInput("a header has no name and text; write NAME=TEXT on each line")
    return {name.strip(): value.strip() for name, _, value in pairs}


def _whole(name: str, text: str) -> int:
    if not text.lstrip("-").isdecimal() or len(text) > 8:
        raise InvalidInput(f"{name} {text[:20]!r} is no whole number")
    return int(text)
