"""The HTTP application with its routes and middleware, and the assembly of all services for a bus."""

from __future__ import annotations

import ipaddress
import os
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

from fastapi import APIRouter, FastAPI
from fastapi.routing import APIRoute
from starlette.routing import BaseRoute
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from holdfast import wiring
from holdfast.bus.client import Bus
from holdfast.bus.shutdown import GRACE
from holdfast.config.config import Config
from holdfast.config.load import FALLBACK
from holdfast.model.errors import InvalidInput
from holdfast.server import api, openapi, pages, problems, status
from holdfast.server.api import broker
from holdfast.server.auth.guard import log_access
from holdfast.server.http import HttpService, listen
from holdfast.server.middleware import CountRequests, FetchMetadata, Limiter, RequestMetrics
from holdfast.server.pipeline_port import PipelinePort, driver_status
from holdfast.server.services import (
    ChildProcess,
    ExpiryService,
    FoldingService,
    LifecycleService,
    OperationsService,
    SweeperService,
)
from holdfast.server.supervisor import Supervisor
from holdfast.server.system import System, create_system


def create_app(system: System) -> FastAPI:
    """The application."""
    app = bare_app()
    app.state.system, app.state.requests = system, RequestMetrics()
    pages.install(app)
    problems.install(app)
    app.add_middleware(FetchMetadata)
    app.add_middleware(Limiter, limits=system.config.server.limits)
    if system.config.server.trusted_proxies:
        app.add_middleware(ProxyHeadersMiddleware, trusted_hosts=list(system.config.server.trusted_proxies))
    app.add_middleware(CountRequests, requests=app.state.requests)  # outermost: what is refused counts too
    return app


def bare_app() -> FastAPI:
    """An application with the routes for programs and nothing behind them: enough to describe it."""
    app = FastAPI(
        title="Holdfast",
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,
        routes=_routes(),
    )
    openapi.install(app)
    return app


@cache
def _routes() -> list[BaseRoute]:
    """The applications of a process share them: to work them out takes as long as hundreds of requests."""
    found = APIRouter(generate_unique_id_function=_name)
    for router in (status.router, openapi.router, broker.router, api.router()):
        found.include_router(router)
    return found.routes


def _name(route: APIRoute) -> str:
    """A route's operation id is its function's name: it stays when paths move."""
    return route.name


@dataclass(frozen=True, slots=True)
class Choice:
    """What is started."""

    http: bool = True
    lifecycle: bool = True
    sweeper: bool = True
    archiver: bool = True
    ingest: bool = True
    file: Path | None = None
    """The configuration's file, for the services that are processes of their own."""
    logs: Path | None = None
    """The folder of their logs; without it they share ours."""


def assemble(
    bus: Bus,
    config: Config,
    choice: Choice,
    supervisor: Supervisor | None = None,
    pipeline: PipelinePort | None = None,
) -> Supervisor:
    """All services, in the order in which they are shown. The HTTP port is bound at once."""
    supervisor = supervisor or Supervisor()
    if choice.http:
        bound = listen(config.server.host, config.server.port)
        if config.server.open and not ipaddress.ip_address(bound.getsockname()[0]).is_loopback:
            bound.close()
            raise InvalidInput(
                f"server.open is for loopback only, and {config.server.host} is not: leave it out, use tokens"
            )
        system = create_system(bus, supervisor, config, pipeline=pipeline)
        app = create_app(system)
        supervisor.on_stop += [system.wakeups.wake_all, app.state.snapshots.stop]
        supervisor.add(
            HttpService(
                app, bound, partial(log_access, system), config.server.limits, config.server.trusted_proxies
            )
        )
        supervisor.add(app.state.snapshots)
        supervisor.add(ExpiryService([*system.sessions.records, system.signatures]))
        supervisor.add(OperationsService(system.runner))  # what a call was promised, somebody must do
    if choice.http or choice.sweeper:  # an instance may have no sweeper, or one that comes too seldom
        supervisor.add(FoldingService(bus.partitions, bus.name, config.dlq.interval))
    for partition in bus.partitions.all if choice.lifecycle else ():
        supervisor.add(LifecycleService(bus.partitions, partition))
    for partition in bus.partitions.all if choice.sweeper else ():
        sweeper = wiring.sweeper(partition.backend, config, bus.name, partition.health)
        supervisor.add(SweeperService(partition, sweeper, config.sweeper.interval))
    if choice.archiver and config.archive_streams:
        supervisor.add(_driver("archive", bus, config, choice), GRACE)
    if choice.ingest and config.ingest.channels:
        supervisor.add(_driver("ingest", bus, config, choice), GRACE)
    return supervisor


def _driver(command: str, bus: Bus, config: Config, choice: Choice) -> ChildProcess:
    """A Spark driver. Addresses go by the environment: anybody on the machine can read a command line.

    None means the private store: a child is a user of it by itself, so that it outlives us until the child
    has written what it holds.
    """
    plain = choice.logs is not None and config.log_format == "auto"
    environment = os.environ | {
        "HOLDFAST_URL": ",".join(config.url),
        FALLBACK: "",
        "HOLDFAST_LOG_FORMAT": "lines" if plain else config.log_format,
    }
    if choice.file is not None:
        environment["HOLDFAST_CONFIG"] = str(choice.file)
    status = partial(driver_status, bus.partitions.all[0], config.namespace, command)
    return ChildProcess(command, [command], environment, choice.logs, status)
