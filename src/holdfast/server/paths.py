"""Paths: the pattern of the route that a request met."""

from __future__ import annotations

from typing import Any

from starlette.types import Scope


def route_of(scope: Scope) -> Any:
    """The route that was chosen, as it stands in the application."""
    return scope.get("fastapi", {}).get("effective_route_context") or scope["route"]


def path_of(scope: Scope) -> str | None:
    """The route's path with its placeholders, whole: a route of an included router knows only its own end."""
    whole = scope.get("fastapi", {}).get("effective_route_context") or scope.get("route")
    found: str | None = getattr(whole, "path", None)
    return found
