"""JSON bodies: how deep they nest, before anything is built from them."""

from __future__ import annotations

import re
from typing import Any

from holdfast.deadletters.items import exact_json
from holdfast.model.errors import InvalidInput

# Nothing in it is tried twice, and a text without an end goes to the end: it is linear, whatever comes.
_TEXTS = re.compile(rb'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)
_OTHERS = bytes(set(range(256)) - set(b"[]{}"))
_STEP = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}


def check_depth(body: bytes, limit: int) -> None:
    """Raise `InvalidInput` where a text of JSON nests deeper than this."""
    depth = 0
    brackets = body.translate(None, _OTHERS)
    if len(brackets) <= limit:  # those inside texts count too: this is only the cheap way out
        return
    for bracket in _TEXTS.sub(b"", body).translate(None, _OTHERS):
        depth += _STEP[bracket]
        if depth > limit:
            raise InvalidInput(f"the JSON nests deeper than {limit} levels; flatten it")


def parse(text: bytes, limit: int) -> Any:
    """The value of a text of JSON, such as a line of a stream; `InvalidInput` where it is none."""
    check_depth(text, limit)
    try:
        return exact_json(text)
    except ValueError as error:
        raise InvalidInput(f"this is not JSON: {error}") from None
