"""State records of a deployment: what each part of it last did, for every instance to read; its secret."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Mapping
from datetime import datetime
from typing import Any

import orjson

from holdfast.contracts import Backend
from holdfast.model.errors import InvalidInput
from holdfast.model.upkeep import StateRecord

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
        stored = await backend.records.get(key(namespace, name))
        if stored is not None and int(stored.fields.get("token", "0")) > token:
            return
        revision = 0 if stored is None else stored.revision
        due = now if listed else None
        if await backend.records.put(key(namespace, name), fields, revision, due) is not None:
            return


async def get_report(backend: Backend, namespace: str, name: str) -> tuple[datetime, dict[str, Any]] | None:
    """The last one, and when it was written in the store's time."""
    record = await backend.records.get(key(namespace, name))
    return None if record is None else _read(record)


async def latest_reports(
    backend: Backend, namespace: str, prefix: str, limit: int
) -> list[tuple[datetime, dict[str, Any]]]:
    """Those that are listed under names with this beginning, the latest first."""
    found = await backend.records.due(key(namespace, prefix), limit, newest=True)
    return [_read(record) for record in found]


def _read(record: StateRecord) -> tuple[datetime, dict[str, Any]]:
    try:
        return datetime.fromisoformat(record.fields["at"]), orjson.loads(record.fields["report"])
    except (KeyError, ValueError) as error:
        raise InvalidInput(f"the record {record.key!r} is no report: {error!r}; remove it") from None


class Secret:
    """The secret of a deployment: random, made once, kept in its first store, shown to nobody.

    It signs what a deployment must recognise as its own: on all servers, and after a restart.
    """

    def __init__(self, backend: Backend, namespace: str) -> None:
        self._backend, self._key = backend, f"{namespace}.state.secret"
        self._known: bytes | None = None

    async def sign(self, *parts: str) -> str:
        """Return the signature of some texts, in hexadecimal. No other parts have the same."""
        message = "".join(f"{len(part)}:{part}" for part in parts)
        return hmac.new(await self._read(), message.encode("utf-8", "replace"), hashlib.sha256).hexdigest()

    async def _read(self) -> bytes:
        while self._known is None:
            stored = await self._backend.records.get(self._key)
            if stored is not None:
                self._known = bytes.fromhex(stored.fields["secret"])
            else:  # whoever comes second reads what the first one wrote
                await self._backend.records.put(self._key, {"secret": secrets.token_hex(32)}, 0)
        return self._known
