"""Status: whether the process lives, whether it is ready, and its metrics."""

from __future__ import annotations

import asyncio
from importlib.metadata import version

from fastapi import Depends, Request, Response
from fastapi.responses import PlainTextResponse
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import BaseModel

from holdfast.bus.partitions import Partition
from holdfast.model.errors import HoldfastError
from holdfast.model.redact import mask
from holdfast.server.auth.guard import Router, anybody, caller_of, needs
from holdfast.server.metrics import scrape
from holdfast.server.pipeline_port import troubles
from holdfast.server.services import ChildProcess
from holdfast.server.supervisor import Phase
from holdfast.server.system import Known, System

router = Router(tags=["status"])

_VAGUE = "a token that reads all channels shows the reasons; the log has them too"
PATIENCE = 2.0
"""How long a store may take to tell its time before it counts as unreachable."""


class Alive(BaseModel):
    """The process lives."""

    status: str
    version: str


class PartStatus(BaseModel):
    """One part of the process."""

    name: str
    phase: Phase
    status: str
    restarts: int


class Readiness(BaseModel):
    """Whether every store answers and every part runs, and why not. Reasons and parts are for those who may
    read all channels: they name hosts, ports, databases and files."""

    ready: bool
    reasons: list[str]
    parts: list[PartStatus]


@router.get("/healthz", dependencies=[Depends(anybody)])
async def healthz() -> Alive:
    """The process lives: it answers."""
    return Alive(status="alive", version=version("holdfast"))


@router.get(
    "/readyz",
    dependencies=[Depends(anybody)],
    responses={503: {"model": Readiness, "description": "It is not ready"}},
)
async def readyz(request: Request, system: Known, response: Response) -> Readiness:
    """Every store answers, every part runs, every driver is well; else 503. With a token that reads all
    channels it says why, and how each part is."""
    reasons = [mask(each) for each in await _reasons_against(system)]
    response.status_code = 503 if reasons else 200
    if not await _may_know(request, system):
        return Readiness(ready=not reasons, reasons=[_VAGUE] if reasons else [], parts=[])
    parts = [
        PartStatus(
            name=each.service.name, phase=each.phase, status=mask(each.status()), restarts=each.restarts
        )
        for each in system.supervisor.services
    ]
    return Readiness(ready=not reasons, reasons=reasons, parts=parts)


@router.get("/metrics", dependencies=[Depends(needs("read", scrape=True))], response_class=PlainTextResponse)
async def metrics(system: Known) -> Response:
    """Prometheus' text format. It needs a token that reads all channels, unless `server.open_metrics`."""
    text = await scrape(system.bus, system.supervisor, system.config.namespace)
    return Response(text, headers={"Content-Type": CONTENT_TYPE_LATEST})


async def _may_know(request: Request, system: System) -> bool:
    """Whether the caller may read all channels. A probe that is refused, or that comes while the store of the
    tokens is away, gets the short response."""
    try:
        async with asyncio.timeout(PATIENCE):
            return (await caller_of(request, system)).may("read")
    except (HoldfastError, TimeoutError):
        return False


async def _reasons_against(system: System) -> list[str]:
    """Why the system is not ready."""
    asked = await asyncio.gather(*(_unreachable(system, each) for each in system.partitions.all))
    faulty = [f"partition {index} does not answer: {said}" for index, said in enumerate(asked) if said]
    restarting = [
        f"part {each.service.name} is being restarted: {each.reason}"
        for each in system.supervisor.services
        if each.phase is Phase.RESTARTING
    ]
    stopping = ["it is being stopped"] if system.supervisor.stopping else []
    return faulty + restarting + stopping + await _drivers(system)


async def _unreachable(system: System, partition: Partition) -> str | None:
    """Why a store does not respond; None where it does. Where no lifecycle runs, nobody else finds out."""
    try:
        async with asyncio.timeout(PATIENCE):
            await (await system.partitions.ready(partition)).backend.now()
    except (HoldfastError, TimeoutError) as error:
        said = str(error) or f"nothing within {PATIENCE:g} s"
        if not partition.health.faulty:
            partition.health.failed(said)
        return said
    return None


async def _drivers(system: System) -> list[str]:
    """What is wrong with the drivers that run here. They report to the first store."""
    first = system.partitions.all[0]
    if first.health.faulty or not first.opened:
        return []
    expected = {
        each.service.name for each in system.supervisor.services if isinstance(each.service, ChildProcess)
    }
    return await troubles(first.backend, system.config.namespace, expected)
