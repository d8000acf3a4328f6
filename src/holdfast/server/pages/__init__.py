"""The control room: server-rendered pages that show the running system, and act on it."""

from __future__ import annotations

from functools import cache
from types import ModuleType

from fastapi import APIRouter, FastAPI
from starlette.routing import BaseRoute
from starlette.staticfiles import StaticFiles

from holdfast.server.pages import (
    audit,
    channels,
    confirm,
    deadletters,
    home,
    jobs,
    login,
    operations,
    pipeline,
    schedules,
)
from holdfast.server.pages.layout import STATIC
from holdfast.server.pages.live import SnapshotService

MODULES: tuple[ModuleType, ...] = (
    login,
    home,
    channels,
    schedules,
    jobs,
    pipeline,
    confirm,  # its /deadletters/ask comes before /deadletters/{item}
    deadletters,
    operations,
    audit,
)


def install(app: FastAPI) -> None:
    """Add the pages to an application. Its `state.snapshots` is a service to run."""
    app.state.snapshots = SnapshotService(app.state.system.partitions)
    app.router.routes.extend(_routes())


@cache
def _routes() -> list[BaseRoute]:
    """The applications of a process share them."""
    found = APIRouter()
    found.mount("/static", StaticFiles(directory=STATIC), name="static")
    for module in MODULES:
        found.include_router(module.router)
    return found.routes
