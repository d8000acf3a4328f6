"""Tracing: OpenTelemetry's spans and the W3C trace context, for programs that use them.

A program that traces has imported OpenTelemetry and set a provider. So nothing is imported here before that,
and without it every call returns at once.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from holdfast.model.errors import Snooze
from holdfast.model.event import MAX_HEADER_BYTES, MAX_HEADERS, Event
from holdfast.model.job import Job

HEADER = "traceparent"
_LINKS = 100
_known: tuple[Any, Any] = (None, None)


def tracer() -> Any | None:
    """Return the tracer of the provider that the program has set; None where it set none."""
    global _known
    trace: Any = sys.modules.get("opentelemetry.trace")
    if trace is None or isinstance(provider := trace.get_tracer_provider(), trace.ProxyTracerProvider):
        return None
    if _known[0] is not provider:
        _known = (provider, provider.get_tracer("holdfast"))
    return _known[1]


def publishing(channel: str, events: Sequence[Event]) -> AbstractContextManager[Sequence[Event]]:
    """A span around a publish; yields the events, with its context in the headers of those without one."""
    found = tracer()
    return nullcontext(events) if found is None else _publishing(found, channel, events)


@contextmanager
def _publishing(found: Any, channel: str, events: Sequence[Event]) -> Iterator[Sequence[Event]]:
    attributes = _attributes("send", channel, len(events))
    with found.start_as_current_span(f"publish {channel}", kind=_kind("PRODUCER"), attributes=attributes):
        carrier: dict[str, str] = {}
        _propagator().inject(carrier)
        yield [_carrying(event, carrier) for event in events]


def received(channel: str, consumer: str, jobs: Sequence[Job], began: int) -> None:
    """A poll that leased jobs, and when it began, in nanoseconds; one that found nothing leaves no span."""
    found = tracer() if jobs else None
    if found is None:
        return
    attributes = _attributes("receive", channel, len(jobs), consumer)
    found.start_span(
        f"poll {channel}",
        kind=_kind("CLIENT"),
        attributes=attributes,
        links=_links(jobs),
        start_time=began,
    ).end()


def handling(job: Job) -> AbstractContextManager[None]:
    """A span around a handler that continues the publisher's trace."""
    found = tracer()
    return nullcontext() if found is None else _handling(found, job)


@contextmanager
def _handling(found: Any, job: Job) -> Iterator[None]:
    attributes = _attributes("process", job.channel, None, job.consumer) | {
        "messaging.message.id": job.event.id,
        "holdfast.job.id": job.id,
        "holdfast.job.attempt": job.attempt,
    }
    span = found.start_as_current_span(
        f"process {job.channel}", context=_context(job), kind=_kind("CONSUMER"), attributes=attributes
    )
    snoozed: Snooze | None = None
    with span:
        try:
            yield
        except Snooze as error:  # no failure
            snoozed = error
    if snoozed is not None:
        raise snoozed


def finalizing(outcome: str, jobs: Sequence[Job]) -> AbstractContextManager[object]:
    """A span around the end of attempts: within the trace of a single job, linked to those of many."""
    found = tracer()
    if found is None or not jobs:
        return nullcontext()
    first = jobs[0]
    attributes = _attributes("settle", first.channel, len(jobs), first.consumer)
    manager: AbstractContextManager[object] = found.start_as_current_span(
        f"settle {first.channel}",
        context=_context(first) if len(jobs) == 1 else None,
        kind=_kind("CLIENT"),
        attributes=attributes | {"holdfast.outcome": outcome},
        links=_links(jobs) if len(jobs) > 1 else (),
    )
    return manager


def trace_id() -> str | None:
    """Return the id of the trace that the running code belongs to, as logs name it; None outside of one."""
    trace: Any = sys.modules.get("opentelemetry.trace")
    context = None if trace is None else trace.get_current_span().get_span_context()
    return f"{context.trace_id:032x}" if context is not None and context.is_valid else None


def began() -> int:
    """Return the time now, as spans have it."""
    return time.time_ns()


def _attributes(
    operation: str, channel: str, count: int | None = None, consumer: str | None = None
) -> dict[str, Any]:
    named = {
        "messaging.system": "holdfast",
        "messaging.operation.type": operation,
        "messaging.destination.name": channel,
        "messaging.batch.message_count": count,
        "messaging.consumer.group.name": consumer,
    }
    return {name: value for name, value in named.items() if value is not None}


def _carrying(event: Event, carrier: dict[str, str]) -> Event:
    """The event with the context in its headers, unless it has one, or no room for it."""
    headers = event.headers
    if HEADER in headers:
        return event
    size = sum(len(name) + len(value) for each in (headers, carrier) for name, value in each.items())
    if len(headers) + len(carrier) > MAX_HEADERS or size > MAX_HEADER_BYTES:
        return event
    return tuple.__new__(Event, (*event[:6], {**headers, **carrier}))


def _context(job: Job) -> Any:
    return _propagator().extract(job.event.headers)


def _links(jobs: Sequence[Job]) -> list[Any]:
    from opentelemetry import trace

    spans = [trace.get_current_span(_context(job)).get_span_context() for job in jobs[:_LINKS]]
    return [trace.Link(each) for each in spans if each.is_valid]


def _kind(name: str) -> Any:
    from opentelemetry.trace import SpanKind

    return SpanKind[name]


def _propagator() -> Any:
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    return TraceContextTextMapPropagator()
