"""What schemathesis must be told besides the document: how lines are sent, not to wait, and what there is."""

from __future__ import annotations

import json
import os
import re
import zlib
from typing import Any

import schemathesis

from holdfast.server.parameters import NAME

WORLD = "HOLDFAST_SCHEMATHESIS_WORLD"
"""The variable for `known`, in JSON."""
known: dict[str, str] = json.loads(os.environ.get(WORLD, "{}"))
"""What there is to ask about, by parameter; where it is empty all names are made up."""


@schemathesis.serializer("application/x-ndjson")
def lines(_: schemathesis.SerializationContext, value: Any) -> bytes:
    """A stream is sent as the text that was made up for it; what is no text is no line either."""
    text = value if isinstance(value, str) else f"no line: {value!r}"
    return text.encode(errors="surrogatepass")


@schemathesis.hook
def before_call(context: schemathesis.HookContext, case: schemathesis.Case, kwargs: dict[str, Any]) -> None:
    """Cut waits for jobs that do not come, and ask about what there is: nobody makes up the name of a channel
    that exists, or that a token covers."""
    if isinstance(case.body, dict) and re.fullmatch(r"[0-9][0-9.a-z]*", str(case.body.get("wait", ""))):
        case.body = {**case.body, "wait": "10ms"}
    for given in (case.path_parameters, case.query):
        for name in known.keys() & (given or {}).keys():
            if _is_usual(given[name]):
                given[name] = known[name]


def _is_usual(value: Any) -> bool:
    """Whether what was made up could be a name; one in four stays as it is."""
    text = value if isinstance(value, str) else ""
    return re.search(NAME, text) is not None and zlib.crc32(text.encode()) % 4 > 0
