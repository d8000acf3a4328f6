"""The OpenAPI document: what FastAPI knows of the routes, the problems, and the ways to show a token."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

from fastapi import Depends, FastAPI, Request
from fastapi.openapi.utils import get_openapi
from fastapi.responses import JSONResponse

from holdfast.server.admission import Router
from holdfast.server.auth.credentials import CHANNEL_TOKEN, CONSUMER_TOKEN
from holdfast.server.auth.guard import Need, anybody
from holdfast.server.problems import MEDIA_TYPE, Problem
from holdfast.server.routes import demands, routes_of

router = Router()

_SCHEMA = {"schema": {"$ref": "#/components/schemas/Problem"}}
ERRORS: dict[int | str, dict[str, Any]] = {
    "4XX": {"description": "The request was refused", "content": {MEDIA_TYPE: _SCHEMA}},
    "5XX": {"description": "The server or a store failed", "content": {MEDIA_TYPE: _SCHEMA}},
}
_ABOUT = """\
Durable event delivery over HTTP. A call that changes something is safe to repeat: publishing by the ids of
the events, finishing a job by its token. Errors are problems as RFC 9457 has them."""
_SCHEMES = {
    "bearer": {"type": "http", "scheme": "bearer", "description": "`Authorization: Bearer hf_ID_SECRET`"},
    "channelToken": {"type": "apiKey", "in": "header", "name": CHANNEL_TOKEN},
    "consumerToken": {"type": "apiKey", "in": "header", "name": CONSUMER_TOKEN},
}
_PAIR: dict[str, list[str]] = {"channelToken": [], "consumerToken": []}


@router.get("/openapi.json", include_in_schema=False, dependencies=[Depends(anybody)])
async def openapi_document(request: Request) -> JSONResponse:
    """The document."""
    return JSONResponse(request.app.openapi())


def install(app: FastAPI) -> None:
    """Describe the application as it is."""
    app.openapi = lambda: document(app)  # type: ignore[method-assign]  # FastAPI's own way


def document(app: FastAPI) -> dict[str, Any]:
    """The document, made once."""
    if app.openapi_schema is None:
        app.openapi_schema = _made(app)
    return app.openapi_schema


def _made(app: FastAPI) -> dict[str, Any]:
    made = get_openapi(
        title="Holdfast",
        version=version("holdfast"),
        summary="Durable event delivery",
        description=_ABOUT,
        routes=app.routes,
    )
    parts = made.setdefault("components", {})
    parts.setdefault("schemas", {})["Problem"] = Problem.model_json_schema()
    parts["securitySchemes"] = _SCHEMES
    for route in routes_of(app):
        for need in demands(route.dependant):
            for method in route.methods or ():
                if route.include_in_schema and isinstance(need, Need):
                    _describe(made["paths"][route.path_format][method.lower()], need)
    return made


def _describe(operation: dict[str, Any], need: Need) -> None:
    ways: list[dict[str, list[str]]] = [{"bearer": []}]
    ways += [_PAIR] if need.pair else []
    ways += [{}] if need.scrape else []  # with `server.open_metrics`
    operation["security"] = ways
    operation["x-holdfast-verb"] = need.verb
