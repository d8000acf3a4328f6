"""Routes: which there are, which one a request met, and which query parameters it takes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any, get_args, get_origin

from fastapi import FastAPI
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute, RouteContext, iter_route_contexts
from starlette.requests import Request
from starlette.types import Scope

from holdfast.model.errors import InvalidInput


def routes_of(app: FastAPI) -> Iterator[RouteContext]:
    """All routes of ours, those of included routers too."""
    for route in iter_route_contexts(app.routes):
        if isinstance(route.original_route, APIRoute):
            yield route


def methods_at(app: FastAPI, path: str) -> list[str]:
    """The methods of all routes that have this path; the framework knows those of the first one only."""
    here = [route for route in routes_of(app) if route.path_regex.match(path)]
    return sorted({method for route in here for method in route.methods or ()})


def route_of(scope: Scope) -> Any:
    """The route that a request met, as it is included in the application; None where it met none."""
    return scope.get("fastapi", {}).get("effective_route_context") or scope.get("route")


def path_of(scope: Scope) -> str | None:
    """The whole path of that route, with its placeholders."""
    found: str | None = getattr(route_of(scope), "path", None)
    return found


def check_query(request: Request) -> None:
    """Raise `InvalidInput` for a parameter that the route does not know, since a misspelt word must not mean
    "all", and for one that is given twice where one is expected."""
    if not request.query_params:
        return
    known = dict(_fields(route_of(request.scope).dependant))
    for name, count in Counter(name for name, _ in request.query_params.multi_items()).items():
        if name not in known:
            listed = ", ".join(sorted(known)) or "none at all"
            raise InvalidInput(f"there is no query parameter {name[:100]!r} here; known: {listed}")
        if count > 1 and not known[name]:
            raise InvalidInput(f"the query parameter {name!r} is given {count} times; give it once")


def _fields(dependant: Dependant) -> Iterator[tuple[str, bool]]:
    """The parameters, and whether each may be given more than once."""
    for field in dependant.query_params:
        annotation = field.field_info.annotation
        yield field.alias, any(get_origin(each) is list for each in (annotation, *get_args(annotation)))
    for each in dependant.dependencies:
        yield from _fields(each)
