"""The routes under `/api/v1`: one module for each noun, and the broker's own paths in `broker`.

Each route has a verb for the guard, a response model, and a function whose name is the operation id:

    @router.post("/channels/{channel}/events", status_code=201)
    async def publish(channel: str, system: Known, caller: Annotated[Caller, Depends(needs("publish"))]) -> …:

Errors of `model.errors` are raised as they are; `problems` makes responses of them.
"""

from __future__ import annotations

from holdfast.server.api import (
    channels,
    consumers,
    deadletters,
    events,
    failed_events,
    jobs,
    operations,
    pipeline,
    schedules,
    schemas,
)
from holdfast.server.auth.guard import Router


def router() -> Router:
    """All routes of the API but those of the broker."""
    found = Router(prefix="/api/v1")
    for each in (
        channels.router,
        schemas.router,
        consumers.router,
        consumers.cursors_router,
        events.router,
        schedules.all_router,
        schedules.router,
        jobs.router,
        deadletters.router,
        operations.router,
        failed_events.router,
        pipeline.router,
    ):
        found.include_router(each)
    return found
