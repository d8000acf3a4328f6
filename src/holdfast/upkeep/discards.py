"""Discards: jobs that died where the policy keeps no dead letters, each logged and announced."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from holdfast.contracts import STORE_ERRORS, Backend, raise_if_cancelled
from holdfast.model.job import JobRecord, State

log = logging.getLogger(__name__)


async def tell_discarded(backend: Backend, namespace: str, jobs: Iterable[tuple[str, str, str]]) -> None:
    """Tell of those jobs (channel, consumer, id) that were discarded. They are: no error is raised for it.

    The event's id is the job's with its token, so that who tells of it again changes nothing.
    """
    for channel, consumer, job_id in jobs:
        try:
            record = await backend.job(channel, consumer, job_id)
            if record is not None and record.state is State.DISCARDED:
                await _tell(backend, namespace, record)
        except STORE_ERRORS as error:
            raise_if_cancelled(error)
            log.warning("%s/%s: job %s was discarded and not announced: %r", channel, consumer, job_id, error)


async def _tell(backend: Backend, namespace: str, record: JobRecord) -> None:
    from holdfast.upkeep.announcements import Discarded, announce  # most programs do without pydantic

    error = record.errors[-1].get("error", "") if record.errors else ""
    log.warning(
        "%s/%s: event %s of %s (job %s) is discarded: %s after %s attempts, %s abandonments, worker %s: %s",
        *(record.channel, record.consumer, record.event_id, record.source, record.id, record.reason),
        *(record.attempts, record.abandonments, record.worker, error),
    )
    if record.channel.startswith(f"{namespace}.events.system."):
        return  # an event about it would be the next to be discarded
    discarded = Discarded(
        channel=record.channel,
        consumer=record.consumer,
        event_id=record.event_id,
        source=record.source,
        job=record.id,
        reason=record.reason or "",
        attempts=record.attempts,
        abandonments=record.abandonments,
        worker=record.worker,
        error=error,
    )
    name = f"discarded:{record.channel}/{record.consumer}/{record.id}/{record.token}"
    await announce(backend, namespace, discarded, name)
