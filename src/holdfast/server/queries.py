"""Queries: a parameter that a route does not know is refused: a misspelt word must not mean "all"."""

from __future__ import annotations

from collections.abc import Iterator

from fastapi.dependencies.models import Dependant
from starlette.requests import Request

from holdfast.model.errors import InvalidInput


def check_query(request: Request) -> None:
    """Raise `InvalidInput` for a parameter that the route has no use for."""
    if not request.query_params:
        return
    scope = request.scope
    route = scope.get("fastapi", {}).get("effective_route_context") or scope["route"]
    known = set(_names(route.dependant))
    for name in request.query_params:
        if name not in known:
            listed = ", ".join(sorted(known)) or "none at all"
            raise InvalidInput(f"there is no query parameter {name[:100]!r} here; known: {listed}")


def _names(dependant: Dependant) -> Iterator[str]:
    yield from (field.alias for field in dependant.query_params)
    for each in dependant.dependencies:
        yield from _names(each)
