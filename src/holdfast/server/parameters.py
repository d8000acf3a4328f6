"""Parameters: names, ids and cursors, as the server takes them and as the OpenAPI document describes them."""

from __future__ import annotations

from typing import Annotated, Any, Generic, TypeVar

from fastapi import Path, Query
from pydantic import BaseModel, Field

from holdfast.deadletters.ids import ITEM, LOCAL, PUBLIC
from holdfast.model.event import UUID
from holdfast.model.names import LONGEST, NAME
from holdfast.server.auth.cursors import SEAL


def shape(pattern: str) -> dict[str, Any]:
    """A pattern for the document only: whoever reads the text refuses another one, and says better why."""
    return {"pattern": f"^{pattern}$"}


Name = Annotated[str, Field(pattern=f"^{NAME}$", max_length=LONGEST)]
"""The name of a channel or a consumer."""
JobName = Annotated[str, Field(pattern=f"^{PUBLIC}$")]
"""The id of a job, with its partition where that is not the first."""
ItemName = Annotated[
    str, Field(max_length=600, examples=["job:orders:billing:42"], json_schema_extra=shape(ITEM))
]
"""The id of a dead letter."""

Channel = Annotated[Name, Path(description="The channel.", examples=["orders"])]
Consumer = Annotated[Name, Path(description="The consumer.", examples=["billing"])]
JobId = Annotated[
    JobName, Path(description="The job, as lists of jobs and dead letters have it.", examples=["42"])
]
ItemId = Annotated[ItemName, Path(description="The dead letter, as the list has it.")]
OperationId = Annotated[
    str, Path(max_length=128, description="The operation.", json_schema_extra=shape(UUID))
]

T = TypeVar("T")

Limit = Annotated[int, Query(ge=1, le=1000, description="At most so many.")]
_PAGE = "Where the page before ended: its `after`."
AfterName = Annotated[Name | None, Query(description=_PAGE)]
AfterPosition = Annotated[
    str | None,
    Query(
        max_length=128,
        description="A position, such as the `after` of a page.",
        json_schema_extra=shape(LOCAL),
    ),
]
After = Annotated[
    str | None, Query(max_length=4096, description=_PAGE, json_schema_extra={"pattern": f"^{SEAL}"})
]
"""A cursor that was sealed for its caller."""


class Page(BaseModel, Generic[T]):
    """A page of a list. `after` is null on the last one; a page can be short, even empty, and not be it."""

    items: list[T]
    after: str | None
