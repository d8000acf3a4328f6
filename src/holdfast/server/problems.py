"""Problems: every error as RFC 9457 defines it, `application/problem+json`. No traceback, no secret."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

import orjson
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException
from starlette.types import Scope

from holdfast.model import errors as e
from holdfast.model.redact import mask
from holdfast.server.auth.caller import CALLER
from holdfast.server.errors import Refusal, UnsupportedMediaType
from holdfast.server.limits import OncePerMinute
from holdfast.server.routes import methods_at

log = logging.getLogger(__name__)
log.addFilter(OncePerMinute())

MEDIA_TYPE = "application/problem+json"
_TYPES = "urn:holdfast:problem:"
_SHOWN = 100
_ERRORS = 10
"""The most errors that a problem names: the response to a body of ten thousand faults is short."""
_WORD = re.compile(r"(?<=[a-z])(?=[A-Z])")

STATUSES: Mapping[type[Exception], int] = {
    e.InvalidInput: 400,
    e.TooLarge: 413,
    e.NotFound: 404,
    e.IdConflict: 409,
    e.Incompatible: 409,
    e.Outdated: 412,
    e.LeaseLost: 409,
    e.LockLost: 409,
    e.DataLost: 410,
    e.ObjectConflict: 409,
    e.Overloaded: 429,
    e.Transient: 503,
    e.HoldfastError: 500,
}
"""The status of each error; what is not here has that of its parent in the tree."""
_VAGUE = {
    500: "something went wrong here; the server's log says what",
    503: "a store does not answer; repeat the same request",
}
RETRY_AFTER = {429: "1", 503: "1"}


class Problem(BaseModel):
    """What went wrong, as RFC 9457 has it."""

    model_config = ConfigDict(extra="allow", use_attribute_docstrings=True)

    type: str = Field(examples=["urn:holdfast:problem:not-found"])
    """Which kind: `urn:holdfast:problem:` and a name, or `about:blank` where the status says it all."""
    title: str = Field(examples=["Not found"])
    """The kind in words."""
    status: int = Field(examples=[404])
    """The HTTP status."""
    detail: str = Field(examples=["channel 'orders' has no consumer 'billing'; subscribe it first"])
    """What was wrong, with which value, and what to do."""


def problem(error: Exception, scope: Scope) -> Response:
    """The response for an error that a request met."""
    match error:
        case Refusal():
            return problem_response(error.status, str(error), type(error).__name__, error.headers)
        case RequestValidationError():
            return _invalid(error)
        case HTTPException():
            detail = str(error.detail) if error.detail else _phrase(error.status_code)
            return problem_response(error.status_code, detail, headers=error.headers)
        case e.HoldfastError():
            return _ours(error, scope)
        case _:
            return problem_response(500, _VAGUE[500])


def problem_response(
    status: int, detail: str, name: str | None = None, headers: Mapping[str, str] | None = None, **more: Any
) -> Response:
    """A problem with this status. `name` is the kind, as the error's class is called."""
    words = _WORD.sub(" ", name).lower() if name else ""
    body = {
        "type": f"{_TYPES}{words.replace(' ', '-')}" if name else "about:blank",
        "title": words.capitalize() or _phrase(status),
        "status": status,
        "detail": mask(detail),
        **more,
    }
    retry = {"Retry-After": RETRY_AFTER[status]} if status in RETRY_AFTER else {}
    return Response(orjson.dumps(body), status, {**retry, **(headers or {})}, MEDIA_TYPE)


def install(app: FastAPI) -> None:
    """Respond with problems, whatever is raised."""

    async def handle(request: Request, error: Exception) -> Response:
        response = problem(_mistyped(request, error) or error, request.scope)
        if response.status_code == 405:
            response.headers["Allow"] = ", ".join(methods_at(app, request.scope["path"]))
        return response

    for kind in (e.HoldfastError, RequestValidationError, HTTPException):
        app.add_exception_handler(kind, handle)


def _mistyped(request: Request, error: Exception) -> Refusal | None:
    """What is meant where a whole body does not fit: most often it is JSON that was not called so."""
    kind = request.headers.get("content-type", "")
    if not isinstance(error, RequestValidationError) or is_json(kind):
        return None
    if not any(each["loc"] == ("body",) and each["type"] != "missing" for each in error.errors()):
        return None
    return UnsupportedMediaType(
        f"a body of the type {kind[:100] or 'unknown'!r}; send JSON, with 'Content-Type: application/json'"
    )


def check_kind(request: Request, wanted: str) -> None:
    """Raise `UnsupportedMediaType` unless the body is said to be of this type."""
    kind = request.headers.get("Content-Type", "")
    if _name(kind) != wanted:
        raise UnsupportedMediaType(
            f"a body of the type {kind[:100] or 'unknown'!r}; send 'Content-Type: {wanted}'"
        )


def is_json(kind: str) -> bool:
    """Whether a `Content-Type` is one of JSON."""
    return _name(kind) == "application/json" or _name(kind).endswith("+json")


def _name(kind: str) -> str:
    return kind.partition(";")[0].strip().lower()


def _ours(error: e.HoldfastError, scope: Scope) -> Response:
    status = next(STATUSES[kind] for kind in type(error).__mro__ if kind in STATUSES)
    more: dict[str, Any] = {}
    if isinstance(error, e.IdConflict):
        more["ids"] = list(error.ids)
    if isinstance(error, e.Incompatible):
        more["reasons"] = list(error.reasons)
    if isinstance(error, e.LeaseLost):
        more["jobs"] = list(error.jobs)
    detail, caller = str(error), scope.get(CALLER)
    if status >= 500 and (caller is None or not caller.may("read")):
        # What fails here names hosts, ports, databases and files: they are for those who read all channels.
        log.warning("a request failed: %s", mask(detail))
        detail = _VAGUE[status]
    return problem_response(status, detail, type(error).__name__, **more)


def _invalid(error: RequestValidationError) -> Response:
    """Where the request does not fit; with which value only in a query: elsewhere it may be a payload."""
    found = error.errors()[:_ERRORS]
    faults = [{"where": ".".join(map(str, each["loc"]))[:_SHOWN], "message": _fault(each)} for each in found]
    first = f"{faults[0]['where']}: {faults[0]['message']}" if faults else "the request does not fit"
    return problem_response(422, first, "InvalidRequest", errors=faults)


def _fault(each: Mapping[str, Any]) -> str:
    value = each.get("input")
    if each["loc"][0] != "query" or not isinstance(value, str):
        return str(each["msg"])
    return f"{each['msg']}, not {mask(value)[:_SHOWN]!r}"


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Error"
