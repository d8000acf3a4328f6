"""Correlation: which operation, batch or job the code at hand works for, for every line that it logs."""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar, Token

from holdfast import tracing
from holdfast.model.job import Job

job_at_hand: ContextVar[Job | None] = ContextVar("holdfast_job", default=None)
"""The job whose handler runs. Set as it is: what logs need of it is worked out when something is logged."""
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
    """The ids that hold here, those of the job at hand, and the trace's."""
    job, trace = job_at_hand.get(), tracing.trace_id()
    found = {} if job is None else {"job": job.id, "event": job.event.id}
    return {**found, **_current.get()} | ({} if trace is None else {"trace_id": trace})
