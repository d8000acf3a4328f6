"""Correlation: the ids of the operation, batch or job that the running code works for, for its log lines."""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar, Token

from holdfast import tracing
from holdfast.model.job import Job

current_job: ContextVar[Job | None] = ContextVar("holdfast_job", default=None)
"""The job whose handler runs. What logs need of it is worked out when something is logged."""
_current: ContextVar[Mapping[str, str]] = ContextVar("holdfast_correlation", default={})  # noqa: B039 - never changed


class correlated:  # noqa: N801 - it reads as a verb
    """Adds ids (`operation`, `batch`, …) to whatever is logged within the block."""

    __slots__ = ("_ids", "_token")

    def __init__(self, **ids: str) -> None:
        self._ids = ids

    def __enter__(self) -> None:
        self._token: Token[Mapping[str, str]] = _current.set({**_current.get(), **self._ids})

    def __exit__(self, *_: object) -> None:
        _current.reset(self._token)


def ids() -> dict[str, str]:
    """Return the ids that hold here, those of the current job, and the trace's."""
    job, trace = current_job.get(), tracing.trace_id()
    found = {} if job is None else {"job": job.id, "event": job.event.id}
    return {**found, **_current.get()} | ({} if trace is None else {"trace_id": trace})
