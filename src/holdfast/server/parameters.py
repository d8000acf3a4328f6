"""Parameters: names and ids as they stand in paths, with what the OpenAPI document says about them."""

from __future__ import annotations

from typing import Annotated, Generic, TypeVar

from fastapi import Path, Query
from pydantic import BaseModel

NAME = r"^[a-z0-9][a-z0-9_-]*(\.[a-z0-9_-]+)*$"
"""What `check_name` takes, with at most 128 characters."""
PUBLIC = r"^[0-9A-Za-z][0-9A-Za-z._-]{0,127}(@[1-9][0-9]{0,3})?$"
"""The id of a job, with its partition where that is not the first."""

Channel = Annotated[str, Path(pattern=NAME, max_length=128, description="The channel.", examples=["orders"])]
Consumer = Annotated[
    str, Path(pattern=NAME, max_length=128, description="The consumer.", examples=["billing"])
]
JobId = Annotated[
    str,
    Path(pattern=PUBLIC, description="The job, as lists of jobs and dead letters have it.", examples=["42"]),
]

T = TypeVar("T")

Limit = Annotated[int, Query(ge=1, le=1000, description="At most so many.")]
After = Annotated[str | None, Query(max_length=4096, description="Where the page before ended: its `after`.")]


class Page(BaseModel, Generic[T]):
    """A page of a list. `after` is null on the last one; a page can be short, even empty, and not be it."""

    items: list[T]
    after: str | None
