"""The routes under `/api/v1`: one module for each noun, listed here.

A module has a `router` (an `Router` with a tag); each of its routes has a verb for the guard, a response
model, and a function whose name is the operation id:

    @router.post("/channels/{channel}/events", status_code=201)
    async def publish(channel: str, system: Known, caller: Annotated[Caller, Depends(needs("publish"))]) -> …:

`system.bus`, `system.letters`, `system.config` and so on are what it works with. Errors of `model.errors` are
raised as they are; `problems` makes answers of them.
"""

from __future__ import annotations

from types import ModuleType

from holdfast.server.admission import Router
from holdfast.server.api import (
    channels,
    consumers,
    cursors,
    deadletters,
    events,
    failed,
    jobs,
    operations,
    pipeline,
    polls,
    query,
)

PREFIX = "/api/v1"
MODULES: tuple[ModuleType, ...] = (
    channels,
    consumers,
    cursors,
    events,
    polls,
    jobs,
    deadletters,
    operations,
    failed,
    pipeline,
    query,
)


def router() -> Router:
    """All of them."""
    found = Router(prefix=PREFIX)
    for module in MODULES:
        found.include_router(module.router)
    return found
