"""Ledgers: what the server needs of the pipeline, which it does not import.

Whoever starts the server hands them in where the configuration has a pipeline; its verbs may block.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Protocol

from holdfast.deadletters.failed import FailedRecords


class Step(Protocol):
    """One thing that happened to an event."""

    @property
    def at(self) -> datetime | None: ...
    @property
    def what(self) -> str: ...
    @property
    def where(self) -> str: ...
    @property
    def detail(self) -> str: ...


class Life(Protocol):
    """What is known of one event, in order."""

    @property
    def channel(self) -> str: ...
    @property
    def source(self) -> str: ...
    @property
    def id(self) -> str: ...
    @property
    def steps(self) -> Sequence[Step]: ...


class Ledgers(Protocol):
    """The books of the pipeline."""

    @property
    def records(self) -> FailedRecords | None:
        """What the ingest gave up on; None without an ingest."""

    def trace(self, event_id: str, channel: str | None, source: str | None) -> Sequence[Life]:
        """Every event of that id with its whole life; `NotFound` where there is none."""

    async def query(self, sql: str, *, rows: int, size: int, audit: bool) -> bytes:
        """The result of a query on the warehouse as JSON, cut after so many rows or bytes. `InvalidInput` for
        SQL that is wrong, not allowed or takes too much, and where the warehouse has the audit, which without
        `audit` must not be read. `NotFound` where there is no warehouse, `Unavailable` where others have it.
        """
