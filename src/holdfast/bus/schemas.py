"""The schemas of channels: declared by whoever owns one, kept in the first store of a deployment.

A change that refuses what the schema before allowed is refused itself: such events may wait in the log, and
publishers may still send them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from holdfast import typed
from holdfast.contracts import Backend
from holdfast.model.compatibility import incompatibilities
from holdfast.model.errors import Incompatible, InvalidInput, Outdated
from holdfast.model.names import check_name
from holdfast.model.schema import DeclaredSchema, Schema, check_schema, parse_schema, schema_text
from holdfast.model.upkeep import StateRecord

_TRIES = 10


class Schemas:
    """Reads and changes the schemas of channels in one store."""

    def __init__(self, backend: Backend, namespace: str = "gbe") -> None:
        self._backend, self._prefix = backend, f"{namespace}.state.schemas."

    async def get(self, channel: str) -> DeclaredSchema | None:
        """Return the schema of a channel; None where none was declared."""
        check_name(channel)
        return _declared(channel, await self._backend.records.get(self._prefix + channel))

    async def declare(self, channel: str, schema: Schema, *, force: bool = False) -> DeclaredSchema:
        """Declare a channel's schema; the same again changes nothing.

        Raises `Incompatible` for one that refuses what the last one allowed, unless forced.
        """
        check_name(channel)
        for _ in range(_TRIES):
            record = await self._backend.records.get(self._prefix + channel)
            before = _declared(channel, record, force=force)
            if before is not None and before.text == schema_text(schema):
                return before
            if before is not None and not force:
                await _check(before, schema)
            version = 1 if before is None else before.version + 1
            made = DeclaredSchema(channel, schema, version, await self._backend.now())
            fields = {"schema": made.text, "version": str(version), "changed_at": made.changed_at.isoformat()}
            revision = 0 if record is None else record.revision
            if await self._backend.records.put(self._prefix + channel, fields, revision) is not None:
                return made
        raise _busy(channel)

    async def remove(self, channel: str) -> bool:
        """Remove a channel's schema; False where there is none. The next one is compared with nothing."""
        check_name(channel)
        for _ in range(_TRIES):
            record = await self._backend.records.get(self._prefix + channel)
            if record is None:
                return False
            if await self._backend.records.remove(record.key, record.revision):
                return True
        raise _busy(channel)


async def _check(before: DeclaredSchema, schema: Schema) -> None:
    # In a thread: two large ones take a while.
    if reasons := await asyncio.to_thread(incompatibilities, before.schema, schema):
        raise Incompatible(before.channel, reasons)


def schema_of(given: Any) -> Schema:
    """Return the JSON Schema of a type, or the one that is given. Raises `InvalidInput` for anything else."""
    return check_schema(given if isinstance(given, Mapping) else typed.json_schema(given))


def _declared(channel: str, record: StateRecord | None, *, force: bool = False) -> DeclaredSchema | None:
    if record is None:
        return None
    try:
        fields = record.fields
        version, changed_at = int(fields["version"]), datetime.fromisoformat(fields["changed_at"])
        return DeclaredSchema(channel, parse_schema(fields["schema"]), version, changed_at)
    except (KeyError, ValueError) as error:  # another client has written it
        if force:
            return None
        raise InvalidInput(
            f"the record {record.key!r} is no schema: {error!r}; declare one by force, or remove it"
        ) from None


def _busy(channel: str) -> Outdated:
    return Outdated(f"others keep changing the schema of {channel!r}; look at it again")
