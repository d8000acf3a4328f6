"""The places of an event: its entry in the log, its archived object, its batch in the WAL, its failures."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from datetime import UTC, datetime, timedelta
from typing import NamedTuple, cast

import orjson

from holdfast.contracts import Backend
from holdfast.model.errors import Damaged, DataLost, NotFound
from holdfast.model.log import Page
from holdfast.pipeline.archive.manifest import Manifest, Written
from holdfast.pipeline.archive.objects import text_of
from holdfast.pipeline.failed.service import failures
from holdfast.pipeline.offsets import Spot, before
from holdfast.pipeline.stores import ObjectStore
from holdfast.pipeline.trace.steps import ARCHIVED, PUBLISHED, Step, batch_steps, failure_steps
from holdfast.pipeline.wal import Wal
from holdfast.pipeline.wal.entries import status
from holdfast.pipeline.wal.identity import failed_id
from holdfast.pipeline.wal.records import Act

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Place(NamedTuple):
    """Where an event stands in the log."""

    channel: str
    source: str
    partition: int
    position: str


async def published(store: Backend, place: Place) -> Step:
    """Its entry in the log, or that it is no longer there."""
    channel, position = place.channel, place.position
    pages = cast("AsyncGenerator[Page]", store.pages(channel, before(position), position, 1))
    try:
        async for page in pages:
            if page.positions[-1] == position:
                at = _EPOCH + timedelta(microseconds=page.times[-1])
                key = f", key {page.keys[-1]}" if page.keys[-1] is not None else ""
                detail = f"type {page.types[-1]}{key}, {len(page.data[-1])} bytes"
                return Step(at, PUBLISHED, f"{channel} {position}", detail)
    except DataLost:
        pass
    finally:
        await pages.aclose()
    return Step(None, PUBLISHED, f"{channel} {position}", "no longer in the log: retention has trimmed it")


def archived(store: ObjectStore, manifests: list[Manifest], place: Place) -> Iterator[Step]:
    """The line of the object that holds it. Objects of one commit may cover the same positions."""
    spot = (place.partition, place.channel)
    for manifest in manifests:
        for each in manifest.objects if manifest.spot == spot else ():
            if each.first <= place.position <= each.last:
                try:
                    line = _line(store, each, place.position)
                except Damaged as damage:
                    yield Step(None, ARCHIVED, each.object, str(damage))
                    continue
                if line is not None:
                    yield Step(None, ARCHIVED, each.object, f"line {line} of {each.rows}")


def _line(store: ObjectStore, written: Written, position: str) -> int | None:
    lines = text_of(store, written).splitlines()
    wanted = position.encode()
    for number, line in enumerate(lines, 1):
        if wanted in line and orjson.loads(line)["position"] == position:
            return number
    return None


def in_wal(wal: Wal, place: Place) -> Iterator[Step]:
    """The batch that holds it, as long as it is kept, and its failure, which is kept for good."""
    for name in sorted({*wal.journal.names("pending"), *wal.journal.names("confirmed")}):
        if covers(wal, name, place):
            yield from batch_steps(status(wal, name), wal.attempts(name))
    for name in sorted({each.partition("/")[0] for each in wal.journal.names("failed")}):
        if not covers(wal, name, place):
            continue
        for failure in failures(wal, name):
            if (failure.channel, failure.partition, failure.position) == (place.channel, *place[2:]):
                failed = failed_id(name, failure.name)
                yield from failure_steps(failed, failure, _acts(wal, name, failed))


def covers(wal: Wal, batch: str, place: Place) -> bool:
    """Whether a batch, as far as it can be read, or a failure that it left has this place in it."""
    spot = Spot(place.partition, place.channel)
    try:
        return any(part.holds(spot, place.position) for part in wal.parts(batch))
    except (Damaged, NotFound):
        return f"{place.channel}@{place.partition}@{place.position}" in wal.failed_names(batch)


def _acts(wal: Wal, batch: str, failed: str) -> list[Act]:
    folder = f"acts/{batch}/{failed}"
    return [Act.from_json(wal.journal.read(f"{folder}/{each}")) for each in wal.journal.names(folder)]
