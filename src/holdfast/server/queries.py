"""Queries: a parameter that a route does not know is refused: a misspelt word must not mean "all".

So is one that is given twice where one is expected: nobody could say which of them was meant.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import get_args, get_origin

from fastapi.dependencies.models import Dependant
from starlette.requests import Request

from holdfast.model.errors import InvalidInput
from holdfast.server.paths import route_of


def check_query(request: Request) -> None:
    """Raise `InvalidInput` for a parameter that the route has no use for, or for one too many."""
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
