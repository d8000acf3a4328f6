"""Names in an archive: where a batch's objects and manifests are, from what is in them. Pure."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, timedelta
from typing import NamedTuple

from holdfast.model.errors import InvalidName

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_OBJECTS, _MANIFESTS = "archive", "manifests"
_SUFFIX = ".jsonl.gz"
_BATCH = re.compile(r"(?P<channel>.+)-p(?P<partition>[0-9]{3,6})-(?P<first>[0-9a-f-]+)_(?P<last>[0-9a-f-]+)")
START = "0000"
"""Stands for the beginning of the log in a manifest's name; it sorts before every position."""


class Batch(NamedTuple):
    """What an object's name tells."""

    channel: str
    partition: int
    first: str
    last: str


def domain(channel: str) -> str:
    """The third token of `ns.events.{domain}.…`, else the whole name."""
    tokens = channel.split(".")
    return tokens[2] if len(tokens) >= 3 and tokens[1] == "events" else channel


def folder(channel: str) -> str:
    """Where all objects of a channel are; other channels of the domain are there, too."""
    return f"{_OBJECTS}/{domain(channel)}"


def object_name(batch: Batch, day: int) -> str:
    """`day` is the event's day, counted from 1970 in UTC."""
    return (
        f"{folder(batch.channel)}/{day_folder((_EPOCH + timedelta(days=day)).date())}/"
        f"{batch.channel}-p{batch.partition:03}-{batch.first}_{batch.last}{_SUFFIX}"
    )


def sibling(name: str, first: str, last: str) -> str:
    """The name of an object of the same channel, store and day with other events."""
    place, _, file = name.rpartition("/")
    found = _BATCH.fullmatch(file.removesuffix(_SUFFIX))
    if found is None:
        raise InvalidName(f"{name!r} is no object of an archive")
    return f"{place}/{file[: found.start('first')]}{first}_{last}{_SUFFIX}"


def parse_object(name: str) -> Batch | None:
    """What is in an object of ours, by its name; None for a name that is not ours."""
    found = _BATCH.fullmatch(name.rpartition("/")[2].removesuffix(_SUFFIX))
    if found is None or not name.endswith(_SUFFIX):
        return None
    return Batch(found["channel"], int(found["partition"]), found["first"], found["last"])


def day_folder(day: date) -> str:
    """The part of a path that all objects of a day share. The year has four digits: it sorts by time."""
    return day.isoformat().replace("-", "/")


def manifest_folder(channel: str | None = None, partition: int = 0) -> str:
    """Where the manifests are: all of them, or the chain of one channel on one store."""
    return _MANIFESTS if channel is None else f"{_MANIFESTS}/{channel}/p{partition:03}"


def manifest_name(channel: str, partition: int, after: str | None) -> str:
    """By the cursor that it starts from: there can only be one."""
    return f"{manifest_folder(channel, partition)}/{after or START}.json"
