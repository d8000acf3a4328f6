"""Cursors: the stream consumers of a channel, and their end."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from fastapi import Depends, Query

from holdfast.server.admission import Router
from holdfast.server.api.models import Model
from holdfast.server.auth.caller import Caller
from holdfast.server.auth.guard import needs
from holdfast.server.context import Known
from holdfast.server.parameters import Channel, Consumer
from holdfast.server.refusals import Conflict
from holdfast.upkeep.streams import remove_stream, streams, warning

router = Router(tags=["cursors"], prefix="/channels/{channel}/cursors")


class CursorOut(Model):
    """A stream consumer, such as the archiver, on one store."""

    channel: str
    consumer: str
    partition: int
    position: str | None
    """Its sink is durable up to here; null: nothing yet."""
    moved_at: datetime
    behind: int
    """Events after it, counted up to 1,000,000: retention keeps them for it."""
    oldest: datetime | None
    """When the first of them was published."""


@router.get("")
async def list_cursors(
    channel: Channel, system: Known, caller: Annotated[Caller, Depends(needs("read"))]
) -> list[CursorOut]:
    """The stream consumers of a channel, on every store."""
    found = await streams(await system.letters.stores(), channel)
    return [CursorOut(**each._asdict()) for each in found]


@router.delete("/{consumer}")
async def delete_cursor(
    channel: Channel,
    consumer: Consumer,
    system: Known,
    caller: Annotated[Caller, Depends(needs("operate"))],
    dry_run: Annotated[bool, Query(description="Only tell what would go.")] = False,
    force: Annotated[bool, Query(description="Also where it has events left to read.")] = False,
) -> list[CursorOut]:
    """Remove a stream consumer that is gone for good; what it was is answered.

    Retention keeps what it has not read. Where there is some, it needs `force`: it may be trimmed then.
    """
    stores = await system.letters.stores()
    found = await streams(stores, channel, consumer)
    if not dry_run:
        if any(each.behind for each in found) and not force:
            raise Conflict(f"{warning(found)}; send force=true to remove it all the same")
        await remove_stream(stores, channel, consumer)
        await system.audit.did(caller.actor, "remove cursor", f"{channel}/{consumer}")
    return [CursorOut(**each._asdict()) for each in found]
