"""What schemathesis must be told besides the document: how lines are sent, not to wait, and what there is."""

from __future__ import annotations

import json
import os
import re
import zlib
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import schemathesis
from schemathesis.core.parameters import ParameterLocation
from schemathesis.generation import GenerationMode

from holdfast.server.api.failed_events import FAILED
from holdfast.server.api.models import ITEM, LOCAL, NAME
from holdfast.server.auth.signing import SEAL

WORLD = "HOLDFAST_SCHEMATHESIS_WORLD"
"""The variable that names a file with `known`, in JSON, which may change at any time."""
known: dict[str, Any] = {}
"""What there is to ask about: a value for each parameter or field of a body, also as `OPERATION.NAME` for one
operation alone. Where it is empty all is made up."""
FORMS = {"item": f"^{ITEM}$", "after": f"^({SEAL}|{LOCAL}$)", "failed": FAILED, "id": "."}
"""What is no name, by parameter: only what could be one is put in its place."""
_FILE = os.environ.get(WORLD)


@schemathesis.serializer("application/x-ndjson")
def lines(_: schemathesis.SerializationContext, value: Any) -> bytes:
    """A stream is sent as the text that was made up for it; what is no text is no line either."""
    text = value if isinstance(value, str) else f"no line: {value!r}"
    return text.encode(errors="surrogatepass")


@schemathesis.hook
def before_call(context: schemathesis.HookContext, case: schemathesis.Case, kwargs: dict[str, Any]) -> None:
    """Cut waits for jobs that do not come, and ask about what there is: nobody makes up the name of a channel
    that exists, or that a token covers."""
    if _FILE is not None:
        known.update(json.loads(Path(_FILE).read_text()))
    if isinstance(case.body, dict) and re.fullmatch(r"[0-9][0-9.a-z]*", str(case.body.get("wait", ""))):
        case.body = {**case.body, "wait": "10ms"}
    operation = str(case.operation.definition.raw.get("operationId"))
    made = case._meta  # to look at `meta` would judge the case anew, with the token in it
    fits = made is not None and made.generation.mode is GenerationMode.POSITIVE
    for where, given in (
        (ParameterLocation.PATH, case.path_parameters),
        (ParameterLocation.QUERY, case.query),
    ):
        if made is not None and made.is_negative_at(where):
            continue  # it is to be refused for what stands here, and what there is would be accepted
        often = _often(given)  # a consumer of another channel is none
        for name in given or {}:
            there = _there(operation, name) if fits or name != "after" else None
            if there is not None and often and _could_be(name, given[name]):
                given[name] = there
    if fits:
        if "if-match" in (case.headers or {}) and _often(case.headers["if-match"]):
            case.headers["if-match"] = "*"  # nobody makes up a revision that a consumer has
        case.body = _filled(operation, case.body)
        if operation == "start_operation" and isinstance(case.body, dict) and _often(case.body):
            case.body = _sensible(case.body)


def _sensible(body: dict[str, Any]) -> dict[str, Any]:
    """An operation without the options that are for other kinds."""
    kind = body.get("kind")
    others = {"patch", "digest"} if kind != "patch" else {"digest"}
    others |= {"canary"} if kind in ("purge", "delete") else {"only_exhausted"}
    if kind in ("patch", "delete"):
        others |= {"filter"}
        body = {**body, "items": known.get("items", [])}
    if kind == "patch":
        body = {**body, "patch": [{"op": "add", "path": "/fixed", "value": body.get("patch")}]}
    if body.get("filter") is not None:
        body = {**body, "all": True, "filter": {**body["filter"], "kinds": ["job"]}}
    return {name: value for name, value in body.items() if name not in others}


def _there(operation: str, name: str) -> Any:
    return known.get(f"{operation}.{name}", known.get(name))


def _filled(operation: str, body: Any) -> Any:
    """A body with what there is in three of four places where it fits."""
    if isinstance(body, list):
        return [_filled(operation, each) for each in body]
    if not isinstance(body, dict) or operation.startswith("publish"):
        return body
    return {
        name: there
        if (there := _there(operation, name)) is not None and type(there) is type(value) and _often(value)
        else _filled(operation, value)
        for name, value in body.items()
    }


def _could_be(name: str, value: Any) -> bool:
    """Whether what was made up for a parameter could be one."""
    return isinstance(value, str) and re.search(FORMS.get(name, f"^{NAME}$"), unquote(value)) is not None


def _often(value: Any) -> bool:
    """In three of four cases, always for the same ones."""
    return zlib.crc32(repr(value).encode(errors="surrogatepass")) % 4 > 0
