"""The HTTP application: whether the process lives, whether it is ready, and its metrics."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import version
from typing import Annotated, Any

from fastapi import APIRouter, Depends, FastAPI, Request, Response
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST

from holdfast.bus.partitions import Partitions
from holdfast.server.metrics import scrape
from holdfast.server.supervisor import Phase, Supervisor

router = APIRouter()


@dataclass(frozen=True, slots=True)
class System:
    """What the application tells about."""

    partitions: Partitions
    supervisor: Supervisor


def create_app(system: System) -> FastAPI:
    """The application."""
    app = FastAPI(title="Holdfast", docs_url=None, redoc_url=None, openapi_url=None)
    app.state.system = system
    app.include_router(router)
    return app


def _system(request: Request) -> System:
    system: System = request.app.state.system
    return system


Known = Annotated[System, Depends(_system)]


@router.get("/healthz")
async def healthz() -> dict[str, str]:
    """The process lives: it answers."""
    return {"status": "alive", "version": version("holdfast")}


@router.get("/readyz")
async def readyz(system: Known) -> JSONResponse:
    """Every store answers and every part runs; else 503 with the reasons."""
    reasons = reasons_against(system)
    parts = [
        {"name": each.part.name, "phase": each.phase, "status": each.status(), "restarts": each.restarts}
        for each in system.supervisor.kept
    ]
    body: dict[str, Any] = {"ready": not reasons, "reasons": reasons, "parts": parts}
    return JSONResponse(body, 503 if reasons else 200)


@router.get("/metrics")
async def metrics(system: Known) -> Response:
    """Prometheus' text format."""
    return Response(
        await scrape(system.partitions, system.supervisor), headers={"Content-Type": CONTENT_TYPE_LATEST}
    )


def reasons_against(system: System) -> list[str]:
    """Why the system is not ready."""
    faulty = [
        f"partition {each.index} does not answer: {each.health.reason}"
        for each in system.partitions.all
        if each.health.faulty or not each.opened
    ]
    restarting = [
        f"part {each.part.name} is being restarted: {each.reason}"
        for each in system.supervisor.kept
        if each.phase is Phase.RESTARTING
    ]
    return faulty + restarting + (["it is being stopped"] if system.supervisor.stopping else [])
