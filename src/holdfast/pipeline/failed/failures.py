"""Failures: what failed in a batch of the WAL, and the rows of `failed_events` that follow from it.

A record fails by itself, with an object of its own, or with its batch: the rest are the rows of a batch that
failed as a whole and have no failure of their own. A batch can be many times what a list shows of it. So the
names of the rest are read first, and rows only with the segments that are reached, of which no more are held
than `HELD` bytes, or one.
"""

from __future__ import annotations

import base64
import heapq
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import groupby
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.model.errors import Damaged, NotFound
from holdfast.pipeline.loader.decisions import CONSUMER_WAL, EXHAUSTED
from holdfast.pipeline.wal import Wal, segments
from holdfast.pipeline.wal.batch import WalBatch, failed_id
from holdfast.pipeline.wal.log import REST
from holdfast.pipeline.wal.records import Act, Failure, GaveUp
from holdfast.pipeline.wal.segments import healthy, row_names
from holdfast.pipeline.wal.status import payload
from holdfast.pipeline.warehouse.contract import FailedEvent
from holdfast.pipeline.warehouse.tables import Table, key_of

RETRY, RETRY_FAILED, RESOLVE, ABANDON = "retry", "retry_failed", "resolve", "abandon"
DAMAGED = "damaged"
"""The reason of an entry that stands for records that cannot be read."""
UNREADABLE = "(damaged)"
BY_RETRY = "loaded by a retry"
"""The notes of the act that resolves a failed event whose retry succeeded."""
HELD = 64 << 20
_AT_ONCE = 1_000
_NONE = pa.table({"name": pa.array([], pa.string()), "segment": pa.array([], pa.int64())})
_LONG_AGO = datetime(1970, 1, 1, tzinfo=UTC)


def failure_of(
    row: dict[str, Any],
    *,
    created_at: datetime,
    failed_at: datetime,
    reason: str,
    layer: str,
    error: str | None,
    attempts: int,
) -> Failure:
    """The failure of one row of a segment."""
    return Failure(
        transaction_id=row["transaction_id"],
        channel=row["channel"],
        partition=row["partition"],
        position=row["position"],
        id=row["id"],
        source=row["source"],
        type=row["type"],
        key=row["key"],
        time=row["time"].isoformat(),
        headers=orjson.loads(row["headers"]),
        data=row["data"],
        data_base64=row["data_base64"],
        created_at=created_at,
        failed_at=failed_at,
        reason=reason,
        layer=layer,
        error=error,
        attempts=attempts,
    )


def rest_of(rows: Iterable[dict[str, Any]], gave_up: GaveUp, created_at: datetime) -> Iterator[Failure]:
    """What failed with its batch: the rows that have no failure of their own."""
    for row in rows:
        yield failure_of(
            row,
            created_at=created_at,
            failed_at=gave_up.failed_at,
            reason=gave_up.reason,
            layer=gave_up.layer,
            error=gave_up.error,
            attempts=gave_up.attempts,
        )


def event_of(batch: str, failure: Failure, acts: Sequence[Act], table: Table) -> FailedEvent:
    """The row of `failed_events` for a failure, after what was done about it."""
    keys = {
        name: key_of(name, failure.headers, failure.data, table.columns)
        for name in ("session_key", "correlation_key")
    }
    event = FailedEvent(
        id=failed_id(batch, failure.name),
        transaction_id=failure.transaction_id,
        event_id=failure.id,
        session_key=keys["session_key"],
        correlation_key=keys["correlation_key"],
        source=failure.source,
        event_payload=payload(failure.data, failure.data_base64).decode(),
        failed_at=failure.failed_at,
        failure_reason=failure.reason,
        failure_layer=failure.layer,
        last_error=failure.error,
        retry_count=max(0, failure.attempts - 1),
        last_retry_at=None,
        max_retries_exceeded=failure.reason == EXHAUSTED,
        status="pending",
        resolved_at=None,
        resolved_by=None,
        resolution_notes=None,
        created_at=failure.created_at,
        updated_at=failure.failed_at,
        channel=failure.channel,
        partition=failure.partition,
        position=failure.position,
        batch=batch,
    )
    for act in acts:
        event = apply_act(event, act)
    return event


def damaged_event(batch: str, name: str, at: datetime, error: str, acts: Sequence[Act]) -> FailedEvent:
    """The entry for a record of a failure, `name` within its batch, that cannot be read.

    It has the id that the failed event had, or one of its own where it stands for all that failed with its
    batch of one channel.
    """
    channel, partition, position = name.split("@")
    event = FailedEvent(
        id=failed_id(batch, name),
        transaction_id=UNREADABLE,
        event_id=UNREADABLE,
        session_key=None,
        correlation_key=None,
        source=UNREADABLE,
        event_payload="null",
        failed_at=at,
        failure_reason=DAMAGED,
        failure_layer=CONSUMER_WAL,
        last_error=error,
        retry_count=0,
        last_retry_at=None,
        max_retries_exceeded=False,
        status="pending",
        resolved_at=None,
        resolved_by=None,
        resolution_notes=None,
        created_at=at,
        updated_at=at,
        channel=channel,
        partition=int(partition),
        position=position,
        batch=batch,
    )
    for act in acts:
        event = apply_act(event, act)
    return event


def data_of(failure: Failure) -> bytes:
    """The event's data as it was published."""
    if failure.data is not None:
        return failure.data.encode()
    return base64.b64decode(failure.data_base64 or "")


def apply_act(event: FailedEvent, act: Act) -> FailedEvent:
    """What one act makes of a failed event."""
    event = replace(event, updated_at=act.done_at)
    match act.act:
        case "retry":
            tried = event.retry_count + 1
            return replace(event, status="retrying", retry_count=tried, last_retry_at=act.done_at)
        case "retry_failed":
            return replace(event, status="pending", last_error=act.notes)
        case _:
            return replace(
                event,
                status="abandoned" if act.act == ABANDON else "resolved",
                resolved_at=act.done_at,
                resolved_by=act.by,
                resolution_notes=act.notes,
            )


def failures(wal: Wal, batch: str) -> Iterator[Failure]:
    """Everything that failed in a batch, by itself or with it; `Damaged` where it cannot be read. Of a batch
    whose loss was accepted there is no more than what failed by itself."""
    yield from wal.failures(batch)
    if not wal.is_lost(batch) and (gave_up := wal.gave_up(batch)) is not None:
        stored = _batch(wal, batch)
        rows = healthy(wal, batch, segments.read_all(wal.store, stored.segments))
        yield from rest_of(rows.to_pylist(), gave_up, stored.created_at)


def without_rows(wal: Wal, batch: str) -> Iterator[Failure]:
    """Everything that failed in a batch and that no retry has put into the warehouse; `Damaged` where it
    cannot be read."""
    acts = by_folder(wal.records.names(f"acts/{batch}"))
    for failure in failures(wal, batch):
        failed = failed_id(batch, failure.name)
        last = [
            Act.from_json(wal.records.read(f"acts/{batch}/{failed}/{n}")) for n in acts.get(failed, ())[-1:]
        ]
        if not any(act.act == RESOLVE and act.notes == BY_RETRY for act in last):
            yield failure


def readable(
    wal: Wal, batch: str, wanted: Callable[[str], bool] = lambda _: True, after: str | None = None
) -> Iterator[tuple[str, Failure | Damaged]]:
    """By name what failed in a batch, or what is wrong with its record, by channel in the order of the log:
    of the channels that are wanted, after a name where one is given. Failures of their own are read one by
    one, and the rest of a batch by segments."""
    own = (
        (name, wal.read_failure(batch, name))
        for name in sorted(wal.failed_names(batch))
        if wanted(name.partition("@")[0]) and (after is None or name > after)
    )
    return heapq.merge(own, rest(wal, batch, wanted, after), key=lambda each: each[0])


def known_since(wal: Wal, batch: str) -> datetime:
    """When a batch failed or was made, as far as that can be read; the same at every look."""
    with suppress(Damaged):
        if (gave_up := wal.gave_up(batch)) is not None:
            return gave_up.failed_at
    with suppress(Damaged, NotFound):
        return wal.batch(batch).created_at
    return _LONG_AGO


def by_folder(names: Iterable[str]) -> dict[str, list[str]]:
    """Names below folders, by folder."""
    found: dict[str, list[str]] = defaultdict(list)
    for name in names:
        folder, _, rest = name.partition("/")
        found[folder].append(rest)
    return found


def segment_row(failure: Failure) -> pa.Table:
    """A failure as the row that it was."""
    row: dict[str, Any] = {name: getattr(failure, name, None) for name in segments.SCHEMA.names}
    row |= {
        "time": datetime.fromisoformat(failure.time),
        "headers": orjson.dumps(failure.headers, option=orjson.OPT_SORT_KEYS).decode(),
        "transaction_hash": int.from_bytes(bytes.fromhex(failure.transaction_id)[:8], "big", signed=True),
        "problem": None,
    }
    return pa.Table.from_pylist([row], segments.SCHEMA)


def rest(
    wal: Wal, batch: str, wanted: Callable[[str], bool], after: str | None
) -> Iterator[tuple[str, Failure | Damaged]]:
    """In the order of their names those of the channels that are wanted, after a name where one is given.

    What cannot be read is one entry for each channel of each store, named after its last row.
    """
    try:
        gave_up = wal.gave_up(batch)
        if gave_up is not None:
            yield from _Rest(wal, _batch(wal, batch), gave_up).each(wanted, after)
    except Damaged as damage:  # of the records, before anything else is read
        for group in sorted(_groups(wal, batch)):
            if wanted(group.partition("@")[0]) and (after is None or group + REST > after):
                yield group + REST, damage


@dataclass
class _Rest:
    wal: Wal
    batch: WalBatch
    gave_up: GaveUp
    held: dict[int, pa.Table] = field(default_factory=dict)
    """Segments that were read, by number, the last one last."""

    def each(
        self, wanted: Callable[[str], bool], after: str | None
    ) -> Iterator[tuple[str, Failure | Damaged]]:
        """By group: the rows of one channel on one store."""
        found, unnamed = self._names()
        groups = {*found} if not unnamed else {*found, *_groups(self.wal, self.batch.name)}
        for group in sorted(groups):
            if wanted(group.partition("@")[0]) and (after is None or group + REST > after):
                its = found.get(group, _NONE)
                yield from self._rows(its if after is None else its.filter(pc.field("name") > after))
                # Last, and not where it is met: so a page that begins behind it has it, too.
                if (damage := self._damage({*its["segment"].unique().to_pylist(), *unnamed})) is not None:
                    yield group + REST, damage

    def _names(self) -> tuple[dict[str, pa.Table], list[int]]:
        """By group the names of its rows in order, each with its segment; and segments that do not tell."""
        out = pa.array(self.wal.left_out(self.batch.name), pa.string())
        found: dict[str, list[pa.Table]] = defaultdict(list)
        unnamed = []
        for number, segment in enumerate(self.batch.segments):
            try:
                places = segments.places(self.wal.store, segment)
            except Damaged:
                unnamed.append(number)
                continue
            partition = places["partition"].cast(pa.string())
            groups = pc.binary_join_element_wise(places["channel"], partition, "", "@")
            for group in groups.unique().to_pylist():
                its = row_names(places.filter(pc.equal(groups, group)))
                its = its.filter(pc.invert(pc.is_in(its, out)))
                found[group].append(pa.table([its, pa.repeat(number, len(its))], ["name", "segment"]))
        return {group: pa.concat_tables(its).sort_by("name") for group, its in found.items()}, unnamed

    def _rows(self, its: pa.Table) -> Iterator[tuple[str, Failure]]:
        """The rows of one group that can be read."""
        start = 0
        for number, run in groupby(its["segment"].to_pylist()):
            end = start + sum(1 for _ in run)
            for at in range(start, end, _AT_ONCE):
                try:
                    rows = self._read(number)
                except Damaged:
                    break
                wanted = its["name"].slice(at, min(_AT_ONCE, end - at)).combine_chunks()
                chosen = rows.filter(pc.is_in(row_names(rows), wanted)).sort_by("position")
                for row in chosen.to_batches(max_chunksize=1):
                    [failure] = rest_of(row.to_pylist(), self.gave_up, self.batch.created_at)
                    yield failure.name, failure
            start = end

    def _damage(self, its: set[int]) -> Damaged | None:
        """What is wrong with the first of these segments that cannot be read."""
        for number in sorted(its):
            try:
                self._read(number)
            except Damaged as damage:
                return damage
        return None

    def _read(self, number: int) -> pa.Table:
        if number not in self.held:
            rows = segments.read(self.wal.store, self.batch.segments[number])
            while self.held and sum(each.nbytes for each in self.held.values()) + rows.nbytes > HELD:
                del self.held[next(iter(self.held))]
            self.held[number] = rows
        return self.held[number]


def _batch(wal: Wal, name: str) -> WalBatch:
    try:
        return wal.batch(name)
    except NotFound:
        raise Damaged(f"the record of batch {name}, which has failed, is missing") from None


def _groups(wal: Wal, batch: str) -> list[str]:
    """The groups of a batch, as far as that can be read."""
    try:
        return [f"{part.channel}@{part.partition}@" for part in wal.parts(batch)]
    except (Damaged, NotFound):
        return [f"{UNREADABLE}@0@"]
