"""Answers with events in them: an event's JSON is handed on as it is stored, and nothing is built from it."""

from __future__ import annotations

import base64
from typing import Any

import orjson
from fastapi import Response

from holdfast.deadletters.ids import public
from holdfast.deadletters.items import is_json, nests_deep
from holdfast.model.event import Event, LogEntry
from holdfast.model.garbage import uncollected
from holdfast.model.job import Job
from holdfast.server.turns import Turns


def answer(content: Any) -> Response:
    """The answer; what `data_of` gave stands in it as it is."""
    return Response(orjson.dumps(content, option=orjson.OPT_UTC_Z), media_type="application/json")


async def data_of(name: str, data: bytes, turns: Turns) -> dict[str, Any]:
    """Data under a name where it is JSON that every reader takes, else in Base64 under the name with
    `_base64`."""
    await turns.pause()
    with uncollected():
        readable = is_json(data)
    await turns.pause()
    readable = readable and not nests_deep(data)
    await turns.pause()
    return {name: orjson.Fragment(data)} if readable else {f"{name}_base64": base64.b64encode(data).decode()}


async def event_of(event: Event, turns: Turns) -> dict[str, Any]:
    """An event, as `EventOut` describes it."""
    return {
        "id": event.id,
        "source": event.source,
        "type": event.type,
        "key": event.key,
        "time": event.time,
        "headers": dict(event.headers),
        **await data_of("data", event.data, turns),
    }


async def entry_of(entry: LogEntry, turns: Turns) -> dict[str, Any]:
    """An entry of a log, as `EntryOut` describes it."""
    return {"position": entry.position, "event": await event_of(entry.event, turns)}


async def lease_of(job: Job, turns: Turns) -> dict[str, Any]:
    """A job that was handed out, as `LeaseOut` describes it."""
    return {
        "id": public(job.id, job.partition),
        "token": job.token,
        "attempt": job.attempt,
        "abandonments": job.abandonments,
        "lease_until": job.lease_until,
        "position": job.position,
        "event": await event_of(job.event, turns),
    }
