"""The OpenAPI document: what FastAPI knows of the routes, the problems, and the ways to show a token."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import version
from typing import Any

from fastapi import Depends, FastAPI, Request
from fastapi.openapi.utils import get_openapi
from fastapi.responses import JSONResponse

from holdfast.server.auth.guard import CHANNEL_TOKEN, CONSUMER_TOKEN, Need, Router, anybody, demands
from holdfast.server.problems import MEDIA_TYPE, RETRY_AFTER, Problem
from holdfast.server.routes import routes_of

router = Router()

_MEANINGS = {
    400: "It makes no sense, or is no HTTP",
    401: "No valid token",
    403: "The token does not cover it, or a page of another site asks",
    404: "There is no such thing",
    408: "The request came too slowly",
    409: "It does not fit the state of things; nothing was changed",
    410: "What stood there was lost",
    412: "It is not what the caller saw",
    413: "Too large, or too many at once",
    415: "A body of a type, or in a form, that is not read here",
    422: "It does not fit this document",
    429: "Too much at once for this caller, or for the channel",
    431: "Too many bytes of address and headers",
    500: "The server failed; its log says more",
    503: "Too many callers, or a store is away; repeat the same request",
    504: "No answer in time; whether it took effect is unknown",
}
_ALWAYS = (400, 403, 408, 413, 415, 431, 500, 503, 504)
"""What every request may meet, before anybody looks into it."""
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
    for unused in ("HTTPValidationError", "ValidationError"):  # the framework's own, which are never sent
        parts["schemas"].pop(unused, None)
    parts["responses"] = {_name(status): _problem(status) for status in _MEANINGS}
    parts["securitySchemes"] = _SCHEMES
    for route in routes_of(app):
        for need in demands(route.dependant):
            for method in route.methods or ():
                if route.include_in_schema:
                    operation = made["paths"][route.path_format][method.lower()]
                    for parameter in operation.get("parameters", ()):
                        parameter["schema"] = _given(parameter["schema"])
                    if isinstance(need, Need):
                        _describe(operation, need)
                    _add_problems(operation, method)
    return made


def _given(schema: dict[str, Any]) -> dict[str, Any]:
    """A parameter's schema: one may be left out, but there is no null in an address or a header."""
    kinds = [each for each in schema.get("anyOf", ()) if each != {"type": "null"}]
    if len(kinds) != 1:
        return schema
    return {**kinds[0], **{name: value for name, value in schema.items() if name != "anyOf"}}


def _add_problems(operation: dict[str, Any], method: str) -> None:
    """Name every problem that it may respond with; where that status has a response of its own, both."""
    responses = operation["responses"]
    own = {int(status) for status in responses if int(status) in _MEANINGS}
    for status in own.union(_ALWAYS, _refusals(operation, method)):
        content = responses.get(str(status), {}).get("content", {}) if status != 422 else {}
        if "application/json" in content:
            responses[str(status)]["content"] = content | _problem(status)["content"]
        else:
            responses[str(status)] = {"$ref": f"#/components/responses/{_name(status)}"}
    operation["responses"] = dict(sorted(responses.items()))


def _refusals(operation: dict[str, Any], method: str) -> Iterator[int]:
    """Those that depend on what it takes and does."""
    places = {each["in"] for each in operation.get("parameters", ())}
    names = {each["name"] for each in operation.get("parameters", ())}
    if "security" in operation:
        yield from (401, 429)
    if places or "requestBody" in operation:
        yield 422
    if "path" in places:
        yield 404
    if method != "GET":
        yield 409
    if "if-match" in names:
        yield 412


def may_fail(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """For a route: problems that it may respond with besides those that follow from its parameters."""
    return {status: {"description": _MEANINGS[status]} for status in statuses}


def _problem(status: int) -> dict[str, Any]:
    content = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}
    retry = {"description": "In how many seconds to try again", "schema": {"type": "integer"}}
    headers = {"headers": {"Retry-After": retry}} if status in RETRY_AFTER else {}
    return {"description": _MEANINGS[status], **headers, "content": content}


def _name(status: int) -> str:
    return f"Problem{status}"


def _describe(operation: dict[str, Any], need: Need) -> None:
    ways: list[dict[str, list[str]]] = [{"bearer": []}]
    ways += [_PAIR] if need.pair else []
    ways += [{}] if need.scrape else []  # with `server.open_metrics`
    operation["security"] = ways
    operation["x-holdfast-verb"] = need.verb
