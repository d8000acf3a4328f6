"""Models: the parameters, bodies and responses of the routes, as the OpenAPI document describes them."""

from __future__ import annotations

import base64
import binascii
from datetime import datetime, timedelta
from typing import Annotated, Any, Generic, Self, TypeVar

import orjson
from fastapi import Path, Query, Response
from pydantic import AfterValidator, AwareDatetime, BaseModel, BeforeValidator, ConfigDict, Field

from holdfast.deadletters.items import ITEM, LOCAL, PUBLIC, public
from holdfast.deadletters.payloads import is_json, nests_deep, readable
from holdfast.model.duration import DURATION
from holdfast.model.errors import InvalidInput
from holdfast.model.event import (
    DEFAULT_SOURCE,
    DEFAULT_TYPE,
    FARTHEST,
    MAX_HEADERS,
    MAX_TEXT,
    SAFE,
    UUID,
    Event,
    LogEntry,
    Receipt,
)
from holdfast.model.gc_pause import gc_disabled
from holdfast.model.job import Job, JobRecord
from holdfast.model.names import LONGEST, NAME
from holdfast.server.auth.signing import SEAL
from holdfast.server.bodies import Encoded, TimeSlice
from holdfast.upkeep.announcements import SOURCE

T = TypeVar("T")
RESERVED = "holdfast-"
"""How the names of headers begin that tell where a dead letter came from."""
BASE64 = "([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?"


def shape(pattern: str) -> dict[str, Any]:
    """A pattern for the document only: whoever reads the text refuses another one, and says better why."""
    return {"pattern": f"^{pattern}$"}


Name = Annotated[str, Field(pattern=f"^{NAME}$", max_length=LONGEST)]
"""The name of a channel or a consumer."""
JobName = Annotated[str, Field(pattern=f"^{PUBLIC}$")]
"""The id of a job, with its partition where that is not the first."""
ItemName = Annotated[
    str, Field(max_length=600, examples=["job:orders:billing:42"], json_schema_extra=shape(ITEM))
]
"""The id of a dead letter."""

Channel = Annotated[Name, Path(description="The channel.", examples=["orders"])]
Consumer = Annotated[Name, Path(description="The consumer.", examples=["billing"])]
JobId = Annotated[
    JobName, Path(description="The job, as lists of jobs and dead letters have it.", examples=["42"])
]
ItemId = Annotated[ItemName, Path(description="The dead letter, as the list has it.")]
OperationId = Annotated[
    str, Path(max_length=128, description="The operation.", json_schema_extra=shape(UUID))
]

Limit = Annotated[int, Query(ge=1, le=1000, description="At most so many.")]
_PAGE = "Where the page before ended: its `after`."
AfterName = Annotated[Name | None, Query(description=_PAGE)]
AfterPosition = Annotated[
    str | None,
    Query(
        max_length=128,
        description="A position, such as the `after` of a page.",
        json_schema_extra=shape(LOCAL),
    ),
]
After = Annotated[
    str | None, Query(max_length=4096, description=_PAGE, json_schema_extra={"pattern": f"^{SEAL}"})
]
"""A cursor that was sealed for its caller."""


def _check_text(value: Any) -> Any:
    """A number is not a time here, although it could be seconds."""
    if not isinstance(value, str | datetime) or (isinstance(value, str) and ":" not in value):
        raise ValueError("write a time as 2030-01-31T09:00:00Z")
    return value


def _check_zone(value: datetime) -> datetime:
    """No store takes a zone further away."""
    if abs(value.utcoffset() or timedelta()) >= FARTHEST:
        raise ValueError("a zone is less than 16 hours from UTC")
    return value


def _whole(value: Any) -> Any:
    """JSON has one kind of number: 3.0 is whole too."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


Whole = BeforeValidator(_whole)
"""Goes behind the bounds: `Annotated[int, Field(ge=1), Whole]`."""
Time = Annotated[
    AwareDatetime,
    BeforeValidator(_check_text),
    AfterValidator(_check_zone),
    Field(
        strict=False,
        examples=["2030-01-31T09:00:00Z"],
        json_schema_extra={"pattern": r"([zZ]|[+-](0[0-9]|1[0-5]):[0-5][0-9])$"},
    ),
]
"""A time with a zone."""
Duration = Annotated[str, Field(max_length=32, examples=["30s"], json_schema_extra=shape(DURATION))]
"""At most 36500d."""
Text = Annotated[str, Field(max_length=MAX_TEXT, json_schema_extra=shape(SAFE))]
"""What every store can carry in the fields of an event."""


class Model(BaseModel):
    """What all of them share: unknown fields are refused, a text is no number, and docstrings describe."""

    model_config = ConfigDict(use_attribute_docstrings=True, extra="forbid", strict=True)


class Page(BaseModel, Generic[T]):
    """A page of a list. `after` is null on the last one; a page can be short, even empty, and not be it."""

    items: list[T]
    after: str | None


_HEADERS: dict[str, Any] = {
    "maxProperties": MAX_HEADERS,
    "propertyNames": {
        **shape(SAFE),
        "maxLength": MAX_TEXT,
        "not": {"pattern": "^" + "".join(f"[{each}{each.upper()}]" for each in RESERVED[:-1]) + "-"},
    },
}
_EITHER: dict[str, Any] = {
    "anyOf": [{"properties": {name: {"type": "null"}}} for name in ("data", "data_base64")]
}


class ContentIn(Model):
    """What an event has that is published, with `data` or `data_base64`; without both its data is null."""

    model_config = ConfigDict(json_schema_extra=_EITHER)

    data: Any = Field(default=None, examples=[{"order": 1}])
    """Any JSON value."""
    data_base64: str | None = Field(
        default=None, examples=[None], json_schema_extra=shape(BASE64) | {"contentEncoding": "base64"}
    )
    """Bytes that are no JSON, instead of `data`."""
    type: Text = Field(default=DEFAULT_TYPE, min_length=1)
    key: Text | None = None
    """Events of one key stay in order, where a consumer wants it so."""
    headers: dict[str, Annotated[str, Field(json_schema_extra=shape(SAFE))]] = Field(
        default_factory=dict, json_schema_extra=_HEADERS
    )

    def content(self) -> Any:
        """The data. Raises `InvalidInput` where it is there twice, or a header is one of Holdfast's own."""
        if self.data is not None and self.data_base64 is not None:
            raise InvalidInput("there is data and data_base64; give one of them")
        for name in self.headers:
            if name.lower().startswith(RESERVED):
                raise InvalidInput(
                    f"header {name[:100]!r} is not accepted: only Holdfast writes {RESERVED}*; rename it"
                )
        if self.data_base64 is not None:
            return _decoded(self.data_base64)
        return self.data.content if isinstance(self.data, Encoded) else self.data


class EventIn(ContentIn):
    """An event to publish, with `data` or `data_base64`; without both its data is null."""

    id: Text = Field(default="", examples=["o-1"])
    """With the source, the key by which a repeat is known; without one the server makes it."""
    source: Text = Field(
        default=DEFAULT_SOURCE,
        min_length=1,
        json_schema_extra=shape(SAFE) | {"not": {"pattern": f"^{SOURCE}(:|$)"}},
    )
    time: Time | None = None

    def event(self, fallback: str = "") -> Event:
        """The event; `fallback` is its id where it has none of its own. What Holdfast itself writes is
        believed: where a dead letter came from, what was announced, which schedule it was."""
        content = self.content()
        if self.source == SOURCE or self.source.startswith(f"{SOURCE}:"):
            raise InvalidInput(
                f"source {self.source[:100]!r} is not accepted: only Holdfast has it; use another one"
            )
        return Event(content, self.id or fallback, self.source, self.type, self.key, self.time, self.headers)


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise InvalidInput("data_base64 is no Base64; encode the bytes, or use data") from None


class EventOut(BaseModel):
    """An event as it was published: its content is `data` where it is JSON, else `data_base64`."""

    model_config = ConfigDict(extra="allow")

    id: str
    source: str
    type: str
    key: str | None
    time: datetime | None
    headers: dict[str, str]

    @classmethod
    def of(cls, event: Event) -> Self:
        """From the event."""
        return cls(
            id=event.id,
            source=event.source,
            type=event.type,
            key=event.key,
            time=event.time,
            headers=dict(event.headers),
            **readable("data", event.data),
        )


class ReceiptOut(Model):
    """Where an event stands in its log."""

    id: str
    position: str
    duplicate: bool
    """Whether it was published before: then this is the receipt of that time."""

    @classmethod
    def of(cls, receipt: Receipt) -> Self:
        """From the receipt."""
        return cls(id=receipt.id, position=receipt.position, duplicate=receipt.duplicate)


class EntryOut(Model):
    """One event of a log."""

    position: str
    event: EventOut

    @classmethod
    def of(cls, entry: LogEntry) -> Self:
        """From the entry."""
        return cls(position=entry.position, event=EventOut.of(entry.event))


class LeaseOut(Model):
    """A job that was handed out. Whoever ends it shows its id and its token."""

    id: str = Field(examples=["42"])
    token: int = Field(examples=[7])
    attempt: int
    abandonments: int
    lease_until: datetime
    position: str
    event: EventOut


class JobOut(Model):
    """A job as an operator sees it, live or ended."""

    id: str
    channel: str
    consumer: str
    state: str
    event_id: str
    source: str
    position: str
    attempts: int
    abandonments: int
    priority: int
    created_at: datetime
    due_at: datetime | None
    lease_until: datetime | None
    ended_at: datetime | None
    worker: str | None
    reason: str | None
    """Why it died, or was cancelled."""
    cancelled_by: str | None
    errors: list[dict[str, Any]]

    @classmethod
    def of(cls, record: JobRecord, partition: int) -> Self:
        """From the record."""
        fields = {name: getattr(record, name) for name in cls.model_fields if name not in ("id", "state")}
        return cls(id=public(record.id, partition), state=record.state.value, **fields)


def json_response(content: Any) -> Response:
    """A response; what `data_json` returned is handed on as it is stored, and nothing is built from it."""
    return Response(orjson.dumps(content, option=orjson.OPT_UTC_Z), media_type="application/json")


async def data_json(name: str, data: bytes, timeslice: TimeSlice) -> dict[str, Any]:
    """Data under a name where it is JSON that every reader takes, else in Base64 under the name with
    `_base64`."""
    await timeslice.pause()
    with gc_disabled():
        plain = is_json(data)
    await timeslice.pause()
    plain = plain and not nests_deep(data)
    await timeslice.pause()
    return {name: orjson.Fragment(data)} if plain else {f"{name}_base64": base64.b64encode(data).decode()}


async def event_json(event: Event, timeslice: TimeSlice) -> dict[str, Any]:
    """An event, as `EventOut` describes it."""
    return {
        "id": event.id,
        "source": event.source,
        "type": event.type,
        "key": event.key,
        "time": event.time,
        "headers": dict(event.headers),
        **await data_json("data", event.data, timeslice),
    }


async def entry_json(entry: LogEntry, timeslice: TimeSlice) -> dict[str, Any]:
    """An entry of a log, as `EntryOut` describes it."""
    return {"position": entry.position, "event": await event_json(entry.event, timeslice)}


async def lease_json(job: Job, timeslice: TimeSlice) -> dict[str, Any]:
    """A job that was handed out, as `LeaseOut` describes it."""
    return {
        "id": public(job.id, job.partition),
        "token": job.token,
        "attempt": job.attempt,
        "abandonments": job.abandonments,
        "lease_until": job.lease_until,
        "position": job.position,
        "event": await event_json(job.event, timeslice),
    }
