"""Schemas: what a channel's data looks like, as it was declared."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from pydantic import Field

from holdfast.model.errors import NotFound
from holdfast.model.schema import DeclaredSchema, check_schema
from holdfast.server.api.models import Channel, Model
from holdfast.server.auth.guard import Operates, Reads, Router
from holdfast.server.openapi import may_fail
from holdfast.server.system import Known

router = Router(tags=["channels"], prefix="/channels/{channel}/schema")


class SchemaOut(Model):
    """The schema of a channel."""

    channel: str
    version: int
    """Rises with every change."""
    changed_at: datetime
    json_schema: dict[str, Any] = Field(alias="schema")
    """A JSON Schema."""

    @classmethod
    def of(cls, found: DeclaredSchema) -> SchemaOut:
        """From what is stored."""
        return cls(
            channel=found.channel, version=found.version, changed_at=found.changed_at, schema=found.schema
        )


class SchemaIn(Model):
    """A schema to declare."""

    json_schema: dict[str, Any] = Field(
        alias="schema",
        examples=[{"type": "object", "properties": {"total": {"type": "number"}}, "required": ["total"]}],
    )
    """A JSON Schema of at most 131,072 characters."""
    force: bool = False
    """Also where it refuses what the one before allowed."""


@router.get("")
async def show_schema(channel: Channel, system: Known, caller: Reads) -> SchemaOut:
    """The schema of a channel."""
    found = await (await system.bus.schemas()).get(channel)
    if found is None:
        raise _missing(channel)
    return SchemaOut.of(found)


@router.put("", responses=may_fail(409, 412))
async def put_schema(channel: Channel, body: SchemaIn, system: Known, caller: Operates) -> SchemaOut:
    """Declare the schema of a channel. One that refuses what the one before allowed is refused with 409 and
    its `reasons`, unless forced."""
    schema = check_schema(body.json_schema)
    await system.bus.create_channel(channel)
    found = await (await system.bus.schemas()).declare(channel, schema, force=body.force)
    forced = " by force" if body.force else ""
    await system.audit.did(caller.actor, "put schema", channel, f"version {found.version}{forced}")
    return SchemaOut.of(found)


@router.delete("", status_code=204, responses=may_fail(412))
async def delete_schema(channel: Channel, system: Known, caller: Operates) -> None:
    """Remove the schema of a channel; the next one is compared with nothing. Events and consumers stay."""
    if not await (await system.bus.schemas()).remove(channel):
        raise _missing(channel)
    await system.audit.did(caller.actor, "remove schema", channel)


def _missing(channel: str) -> NotFound:
    return NotFound(f"no schema was declared for channel {channel!r}; declare one with PUT")
