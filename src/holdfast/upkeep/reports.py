"""Reports: what a part of the system last did, as a state record that every instance can read."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import orjson

from holdfast.contracts import Backend
from holdfast.model.errors import InvalidInput
from holdfast.model.upkeep import Record

SWEEPER = "sweeper"
_TRIES = 5


def key(namespace: str, name: str) -> str:
    """The key of a part's record: `gbe.state.sweeper`, `gbe.state.pipeline.archive`."""
    return f"{namespace}.state.{name}"


def driver(name: str) -> str:
    """The name of a Spark driver's report."""
    return f"pipeline.{name}"


def reconciliation(channel: str = "") -> str:
    """The name of a channel's reconciliation, or what the names of all of them begin with."""
    return f"reconcile.{channel}"


async def put_report(
    backend: Backend,
    namespace: str,
    name: str,
    report: Mapping[str, Any],
    token: int = 0,
    *,
    listed: bool = False,
) -> None:
    """Write it over the one before, with the store's time; one of a holder with a later token stays.

    One that is `listed` is found by `latest_reports`.
    """
    now = await backend.now()
    fields = {
        "at": now.isoformat(),
        "token": str(token),
        "report": orjson.dumps(report).decode(),
    }
    for _ in range(_TRIES):
        standing = await backend.record(key(namespace, name))
        if standing is not None and int(standing.fields.get("token", "0")) > token:
            return
        revision = 0 if standing is None else standing.revision
        due = now if listed else None
        if await backend.put_record(key(namespace, name), fields, revision, due) is not None:
            return


async def get_report(backend: Backend, namespace: str, name: str) -> tuple[datetime, dict[str, Any]] | None:
    """The last one, and when it was written in the store's time."""
    record = await backend.record(key(namespace, name))
    return None if record is None else _read(record)


async def latest_reports(
    backend: Backend, namespace: str, prefix: str, limit: int
) -> list[tuple[datetime, dict[str, Any]]]:
    """Those that are listed under names with this beginning, the latest first."""
    found = await backend.due_records(key(namespace, prefix), limit, newest=True)
    return [_read(record) for record in found]


def _read(record: Record) -> tuple[datetime, dict[str, Any]]:
    try:
        return datetime.fromisoformat(record.fields["at"]), orjson.loads(record.fields["report"])
    except (KeyError, ValueError) as error:
        raise InvalidInput(f"the record {record.key!r} is no report: {error!r}; remove it") from None
