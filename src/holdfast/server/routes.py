"""Routes: which there are, and what each one demands of its callers."""

from __future__ import annotations

from collections.abc import Iterator

from fastapi import FastAPI
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute, RouteContext, iter_route_contexts

from holdfast.server.auth.guard import Need, anybody


def routes_of(app: FastAPI) -> Iterator[RouteContext]:
    """All routes of ours, those of included routers too."""
    for route in iter_route_contexts(app.routes):
        if isinstance(route.original_route, APIRoute):
            yield route


def demands(dependant: Dependant) -> Iterator[object]:
    """What a route demands of its callers: a `Need`, or `anybody`."""
    for each in dependant.dependencies:
        if isinstance(each.call, Need) or each.call is anybody:
            yield each.call
        yield from demands(each)


def methods_at(app: FastAPI, path: str) -> list[str]:
    """The methods of all routes that have this path; the framework knows those of the first one only."""
    here = [route for route in routes_of(app) if route.path_regex.match(path)]
    return sorted({method for route in here for method in route.methods or ()})
