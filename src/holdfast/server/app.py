"""The HTTP application: its routes, and what stands around them."""

from __future__ import annotations

from functools import cache

from fastapi import APIRouter, FastAPI
from fastapi.routing import APIRoute
from starlette.routing import BaseRoute
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from holdfast.server import api, broker, openapi, pages, problems, status
from holdfast.server.context import System
from holdfast.server.fetch_metadata import FetchMetadata
from holdfast.server.limits import Limiter
from holdfast.server.requests import CountRequests, Requests


def create_app(system: System) -> FastAPI:
    """The application."""
    app = bare_app()
    app.state.system, app.state.requests = system, Requests()
    pages.install(app)
    problems.install(app)
    app.add_middleware(FetchMetadata)
    app.add_middleware(Limiter, limits=system.config.server.limits)
    if system.config.server.trusted_proxies:
        app.add_middleware(ProxyHeadersMiddleware, trusted_hosts=list(system.config.server.trusted_proxies))
    app.add_middleware(CountRequests, requests=app.state.requests)  # outermost: what is refused counts too
    return app


def bare_app() -> FastAPI:
    """Its routes for programs, with nothing behind them: enough to describe it."""
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
