"""Failed events: what the ingest gave up on, and what can be done about it."""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import Annotated, Literal

from fastapi import Path, Query
from pydantic import ConfigDict, Field

from holdfast.deadletters.sources import FailedRecord, FailedRecords
from holdfast.model.errors import NotFound
from holdfast.server.api.deadletters import check_failed
from holdfast.server.api.models import After, Limit, Model, Name, Page
from holdfast.server.auth.caller import Caller
from holdfast.server.auth.guard import OperatesFiltered, ReadsFiltered, Router
from holdfast.server.openapi import may_fail
from holdfast.server.system import Known, System

router = Router(tags=["failed events"], prefix="/failed-events")

FAILED = "^[0-9A-Za-z-]{1,128}$"
FailedId = Annotated[str, Path(pattern=FAILED, description="The failed event.")]
NOTES = 10_000
"""Characters of notes, at the most."""
LIST = "failed events"
"""What its cursors are for."""


class FailedOut(Model):
    """A row of `failed_events`."""

    model_config = ConfigDict(from_attributes=True)

    id: str
    transaction_id: str
    event_id: str
    session_key: str | None
    correlation_key: str | None
    source: str
    event_payload: str
    """JSON; bytes that are no JSON stand in it as `data_base64`."""
    failed_at: datetime
    failure_reason: str
    failure_layer: str
    last_error: str | None
    retry_count: int
    last_retry_at: datetime | None
    max_retries_exceeded: bool
    status: Literal["pending", "retrying", "resolved", "abandoned"]
    resolved_at: datetime | None
    resolved_by: str | None
    resolution_notes: str | None
    created_at: datetime
    updated_at: datetime
    channel: str
    partition: int
    position: str
    batch: str


class Notes(Model):
    """Why, for whoever looks at it later."""

    notes: str = Field(min_length=1, max_length=NOTES)


@router.get("", responses=may_fail(404))
async def list_failed_events(
    system: Known,
    caller: ReadsFiltered,
    status: Annotated[Literal["pending", "retrying", "resolved", "abandoned"] | None, Query()] = None,
    channel: Annotated[Name | None, Query()] = None,
    limit: Limit = 100,
    after: After = None,
) -> Page[FailedOut]:
    """Failed events as the WAL knows them, batch by batch. A page can be short, even empty, and have more
    behind it."""
    caller.require("read", channel)
    records, size = failed_records(system), system.config.server.limits.answer
    place = await system.cursors.open(caller, LIST, after)

    def wanted(name: str) -> bool:
        return (channel is None or name == channel) and caller.sees(name)

    with system.searches.take(caller.actor):
        found, next_page = await asyncio.to_thread(records.page, wanted, status, place, limit, size)
    return Page(
        items=[_out(each) for each in found], after=await system.cursors.seal(caller, LIST, next_page)
    )


@router.get("/{failed}")
async def show_failed_event(failed: FailedId, system: Known, caller: ReadsFiltered) -> FailedOut:
    """One failed event, its payload included."""
    return _out(await _permitted(system, caller, "read", failed))


@router.post("/{failed}/retry")
async def retry_failed_event(failed: FailedId, system: Known, caller: OperatesFiltered) -> FailedOut:
    """Validate it again and put it into the warehouse: `resolved`, or `pending` with the new error."""
    await _permitted(system, caller, "operate", failed)
    done = await asyncio.to_thread(failed_records(system).retry, failed, caller.actor)
    await system.audit.did(caller.actor, "retry failed event", failed, done.status)
    return _out(done)


@router.post("/{failed}/resolve")
async def resolve_failed_event(
    failed: FailedId, body: Notes, system: Known, caller: OperatesFiltered
) -> FailedOut:
    """Write down that it was dealt with in another way."""
    await _permitted(system, caller, "operate", failed)
    done = await asyncio.to_thread(failed_records(system).resolve, failed, caller.actor, body.notes)
    await system.audit.did(caller.actor, "resolve failed event", failed)
    return _out(done)


@router.post("/{failed}/abandon")
async def abandon_failed_event(
    failed: FailedId, body: Notes, system: Known, caller: OperatesFiltered
) -> FailedOut:
    """Write down that nothing will be done about it."""
    await _permitted(system, caller, "operate", failed)
    done = await asyncio.to_thread(failed_records(system).abandon, failed, caller.actor, body.notes)
    await system.audit.did(caller.actor, "abandon failed event", failed)
    return _out(done)


def failed_records(system: System) -> FailedRecords:
    """Raises `NotFound` where there is no ingest."""
    if system.failed_records is None:
        raise NotFound("there is no ingest here, so no failed events; configure ingest: channels:")
    return system.failed_records


async def _permitted(
    system: System, caller: Caller, verb: Literal["read", "operate"], failed: str
) -> FailedRecord:
    """The record; raises `Forbidden` unless the caller may do this on its channel."""
    records = failed_records(system)
    try:
        found = await asyncio.to_thread(records.show, failed)
    except NotFound:
        caller.require(verb)
        raise
    check_failed(caller, verb, found.channel)
    return found


def _out(record: FailedRecord) -> FailedOut:
    return FailedOut.model_validate(record)
