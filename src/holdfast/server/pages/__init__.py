"""The control room: server-rendered pages that show the system living, and act on it."""

from __future__ import annotations

from functools import cache
from types import ModuleType

from fastapi import APIRouter, FastAPI
from starlette.routing import BaseRoute
from starlette.staticfiles import StaticFiles

from holdfast.server.pages import (
    asking,
    audit,
    channels,
    door,
    front,
    letter,
    letters,
    operations,
    pipeline,
    query,
    trace,
)
from holdfast.server.pages.house import STATIC
from holdfast.server.pages.watch import Watch

MODULES: tuple[ModuleType, ...] = (
    door,
    front,
    channels,
    pipeline,
    query,
    trace,
    letters,
    asking,
    letter,
    operations,
    audit,
)


def install(app: FastAPI) -> None:
    """Add the pages to an application. Its `state.watch` is a part that wants to run."""
    app.state.watch = Watch(app.state.system.partitions)
    app.router.routes.extend(_routes())


@cache
def _routes() -> list[BaseRoute]:
    """The applications of a process share them."""
    found = APIRouter()
    found.mount("/static", StaticFiles(directory=STATIC), name="static")
    for module in MODULES:
        found.include_router(module.router)
    return found.routes
