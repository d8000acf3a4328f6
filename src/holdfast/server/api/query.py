"""Queries: SQL on the warehouse, for callers who may read every channel."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Depends, Response
from pydantic import Field

from holdfast.model.errors import HoldfastError, NotFound
from holdfast.server.admission import Router
from holdfast.server.api.models import Model, Whole
from holdfast.server.auth.caller import Caller
from holdfast.server.auth.guard import needs
from holdfast.server.context import Known, System
from holdfast.server.openapi import may

router = Router(tags=["pipeline"])

LONGEST, ROWS = 100_000, 1_000
"""Characters of a query, and rows of its result unless it says otherwise."""


class QueryIn(Model):
    """A query."""

    sql: str = Field(min_length=1, max_length=LONGEST, examples=["SELECT count(*) AS events FROM all_events"])
    """One SELECT in DuckDB's dialect."""
    limit: Annotated[int, Field(ge=1, le=10_000), Whole] = ROWS
    """The most rows of the result."""


class ResultColumn(Model):
    """A column of a result."""

    name: str = Field(examples=["events"])
    type: str = Field(examples=["BIGINT"])
    """DuckDB's name of it."""


class QueryOut(Model):
    """The result of a query."""

    columns: list[ResultColumn]
    rows: list[list[Any]]
    """Each with a value for every column. Times and intervals are text, bytes are hexadecimal."""
    truncated: bool
    """Whether there are more rows than these: after `limit`, or after the bytes of one answer."""
    seconds: float


@router.post("/query", response_model=QueryOut, responses=may(404))
async def query_warehouse(
    body: QueryIn, system: Known, caller: Annotated[Caller, Depends(needs("read"))]
) -> Response:
    """Ask the warehouse. It is only read, within limits on time, memory and size; the query is audited."""
    told = await run_query(system, caller, body.sql, body.limit)
    return Response(told, media_type="application/json")


async def run_query(system: System, caller: Caller, sql: str, rows: int) -> bytes:
    """The result as JSON; what was asked is in the audit, however it ended. `NotFound` where this server has
    no warehouse; else as `Ledgers.query`."""
    if system.ledgers is None:
        raise NotFound("this server cannot read the warehouse: pip install 'holdfast[spark]'")
    size, audit = system.config.server.limits.answer, caller.may("admin")
    outcome = "unknown"
    with system.queries.take(caller.actor):
        try:
            told = await system.ledgers.query(sql, rows=rows, size=size, audit=audit)
            outcome = "done"
        except HoldfastError as error:
            outcome = f"failed: {error}"
            raise
        finally:
            await system.audit.did(caller.actor, "query", " ".join(sql.split()), outcome)
    return told
