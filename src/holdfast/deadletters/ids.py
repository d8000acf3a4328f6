"""Public ids: what lists print, and every command and path takes back.

A job is its store's id on the first partition, and `ID@PARTITION` on the others. An item of the one list is
`job:CHANNEL:CONSUMER:JOB`, `ingest:FAILED_ID` or `stream:CHANNEL:POSITION`, which has `@PARTITION` too.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, get_args

from holdfast.model.errors import InvalidInput
from holdfast.model.names import NAME, check_name

Kind = Literal["job", "ingest", "stream"]
KINDS: tuple[Kind, ...] = get_args(Kind)

# What some store gives as a job's id or as a position: nothing else can be one.
LOCAL = r"[0-9A-Za-z][0-9A-Za-z._-]{0,127}"
PUBLIC = rf"{LOCAL}(@[1-9][0-9]{{0,3}})?"
ITEM = rf"(job:{NAME}:{NAME}:{PUBLIC}|ingest:{LOCAL}|stream:{NAME}:{PUBLIC})"
_LOCAL, _PUBLIC = re.compile(LOCAL), re.compile(PUBLIC)


@dataclass(frozen=True, slots=True)
class ItemId:
    """An item of the one list, taken apart."""

    kind: Kind
    local: str
    """The job's id in its store, the failed event's id, or the message's position."""
    channel: str = ""
    consumer: str = ""
    partition: int = 0

    def __str__(self) -> str:
        match self.kind:
            case "job":
                return f"job:{self.channel}:{self.consumer}:{public(self.local, self.partition)}"
            case "ingest":
                return f"ingest:{self.local}"
            case "stream":
                return f"stream:{self.channel}:{public(self.local, self.partition)}"


def public(local: str, partition: int) -> str:
    """The public form of an id that is a store's own."""
    return f"{local}@{partition}" if partition else local


def parse_public(text: str) -> tuple[str, int]:
    """The inverse of `public`."""
    if not _PUBLIC.fullmatch(text):
        raise InvalidInput(f"{text!r} is no id; write it as a list prints it: ID, or ID@PARTITION")
    local, _, number = text.partition("@")
    return local, int(number or 0)


def job_item(channel: str, consumer: str, job: str) -> ItemId:
    """The item of a job that is given by its public id."""
    local, partition = parse_public(job)
    return ItemId("job", local, check_name(channel), check_name(consumer, "consumer"), partition)


def parse_item(text: str) -> ItemId:
    """An item's id as a list prints it."""
    match text.split(":"):
        case ["job", channel, consumer, job]:
            return job_item(channel, consumer, job)
        case ["ingest", failed] if _LOCAL.fullmatch(failed):
            return ItemId("ingest", failed)
        case ["stream", channel, place]:
            local, partition = parse_public(place)
            return ItemId("stream", local, check_name(channel), partition=partition)
    raise InvalidInput(
        f"{text!r} is no dead letter's id; "
        "write job:CHANNEL:CONSUMER:ID, ingest:ID or stream:CHANNEL:POSITION"
    )
