"""The view of failed records: from the WAL's records and the operator's acts to rows of `failed_events`."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

import orjson

from holdfast.pipeline.loader.decisions import CONSUMER_WAL, EXHAUSTED
from holdfast.pipeline.wal.entries import payload
from holdfast.pipeline.wal.identity import failed_id
from holdfast.pipeline.wal.records import Act, Failure, GaveUp
from holdfast.pipeline.warehouse.contract import FailedEvent
from holdfast.pipeline.warehouse.tables import Table, key_of

RETRY, RETRY_FAILED, RESOLVE, ABANDON = "retry", "retry_failed", "resolve", "abandon"
DAMAGED = "damaged"
"""The reason of an entry that stands for records that cannot be read."""
UNREADABLE = "(damaged)"


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
        event = after(event, act)
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
        event = after(event, act)
    return event


def data_of(failure: Failure) -> bytes:
    """The event's data as it was published."""
    if failure.data is not None:
        return failure.data.encode()
    return base64.b64decode(failure.data_base64 or "")


def after(event: FailedEvent, act: Act) -> FailedEvent:
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
