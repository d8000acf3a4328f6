"""Query: SQL on the warehouse, with examples."""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple

import orjson
from fastapi import APIRouter, Form, Query, Request, Response

from holdfast.model.errors import InvalidInput, NotFound, Unavailable
from holdfast.server.api.query import LONGEST, run_query
from holdfast.server.context import Known
from holdfast.server.pages.house import PageRoute, page
from holdfast.server.pages.visit import Visit, visits
from holdfast.server.problems import problem
from holdfast.server.refusals import Full

router = APIRouter(route_class=PageRoute, include_in_schema=False)

ROWS, CUT = 500, 500
"""Rows on the page, and characters of a value."""


class Example(NamedTuple):
    """A query to begin with."""

    name: str
    title: str
    sql: str


EXAMPLES = (
    Example(
        "minutes",
        "Events per minute",
        """\
SELECT date_trunc('minute', time) AS minute, channel, count(*) AS events
FROM all_events
WHERE time > now() - INTERVAL 1 HOUR
GROUP BY ALL
ORDER BY minute DESC, events DESC""",
    ),
    Example(
        "slowest",
        "Slowest into the warehouse",
        """\
SELECT channel, type, count(*) AS events,
       round(quantile_cont(epoch(ingested_at - time), 0.5), 1) AS median_seconds,
       round(quantile_cont(epoch(ingested_at - time), 0.99), 1) AS p99_seconds
FROM all_events
WHERE ingested_at > now() - INTERVAL 1 DAY
GROUP BY ALL
ORDER BY p99_seconds DESC""",
    ),
    Example(
        "failures",
        "Failures by day",
        """\
SELECT failed_at::DATE AS day, channel, failure_reason, status, count(*) AS events
FROM failed_events
GROUP BY ALL
ORDER BY day DESC, events DESC""",
    ),
    Example(
        "types",
        "Events by day and type",
        """\
SELECT time::DATE AS day, channel, type, count(*) AS events, count(DISTINCT key) AS keys
FROM all_events
GROUP BY ALL
ORDER BY day DESC, events DESC""",
    ),
    Example(
        "schemas",
        "Schema changes",
        """\
SELECT since, channel, version, cause, len(left_out) AS left_out
FROM holdfast_schemas
ORDER BY since DESC""",
    ),
    Example(
        "columns",
        "Tables and columns",
        """\
SELECT table_name, column_name, data_type
FROM information_schema.columns
ORDER BY table_name, ordinal_position""",
    ),
)


@router.get("/query")
async def query(
    request: Request,
    visit: Annotated[Visit, visits("read")],
    example: Annotated[str, Query(max_length=32)] = "",
) -> Response:
    """A place for a query, and examples."""
    chosen = next((each for each in EXAMPLES if each.name == example), EXAMPLES[0])
    return page(request, "query.html", visit, sql=chosen.sql, chosen=example, **_nothing())


@router.post("/query")
async def run(
    request: Request,
    system: Known,
    visit: Annotated[Visit, visits("read")],
    sql: Annotated[str, Form(min_length=1, max_length=LONGEST)],
) -> Response:
    """Run it, and show its result or what is wrong with it."""
    sql = sql.replace("\r\n", "\n")  # a browser's ends of lines
    try:
        result = orjson.loads(await run_query(system, visit.caller, sql, ROWS))
    except (InvalidInput, NotFound, Unavailable, Full) as error:
        told, status = _nothing() | {"error": str(error)}, problem(error, request.scope).status_code
        return page(request, "query.html", visit, status=status, sql=sql, chosen="", **told)
    rows = [[_shown(value) for value in row] for row in result["rows"]]
    told = _nothing() | {"result": result | {"rows": rows}}
    return page(request, "query.html", visit, sql=sql, chosen="", **told)


def _nothing() -> dict[str, Any]:
    return {"examples": EXAMPLES, "result": None, "error": None}


def _shown(value: object) -> tuple[str, str]:
    """A value's text and its look."""
    match value:
        case None:
            return "null", "quiet"
        case bool():
            return str(value).lower(), ""
        case int() | float():
            return str(value), "number"
        case str():
            text = value
        case _:
            text = orjson.dumps(value).decode()
    return (text if len(text) <= CUT else f"{text[:CUT]}…"), ""
