"""OpenTelemetry: one trace from the publisher to the worker over a real store, and nothing without it."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

import holdfast
from holdfast import App, Event, tracing
from holdfast.correlation import ids
from holdfast.model.event import MAX_HEADERS
from kit import CHANNEL, CONSUMER, until

PLAIN = """
import asyncio, json, sys, holdfast

async def main():
    async with holdfast.connect(sys.argv[1]) as hf:
        await hf.subscribe("orders", "billing")
        await hf.publish("orders", {"n": 1}, id="o-1")
        [job] = await hf.poll("orders", "billing")
        await hf.finalize(job, success=True)
        return dict(job.event.headers)

headers = asyncio.run(main())
print(json.dumps({"headers": headers, "imported": "opentelemetry" in sys.modules}))
"""


@pytest.fixture(scope="module")
def exporter() -> Iterator[InMemorySpanExporter]:
    """A provider for this module only: the official way sets one for the rest of the process."""
    found = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(found))
    before = trace._TRACER_PROVIDER
    trace._TRACER_PROVIDER = provider
    yield found
    trace._TRACER_PROVIDER = before


@pytest.fixture
def spans(exporter: InMemorySpanExporter) -> InMemorySpanExporter:
    exporter.clear()
    return exporter


@pytest.fixture
async def bus(database: str) -> AsyncIterator[holdfast.Bus]:
    async with holdfast.connect(database) as opened:
        await opened.subscribe(CHANNEL, CONSUMER, backoff=["1h"])
        yield opened


def named(spans: InMemorySpanExporter, name: str) -> ReadableSpan:
    [found] = [span for span in spans.get_finished_spans() if span.name == name]
    return found


def context(span: ReadableSpan) -> trace.SpanContext:
    assert span.context is not None
    return span.context


async def work(bus: holdfast.Bus, app: App, spans: InMemorySpanExporter) -> None:
    """Run the app until an attempt is settled."""
    stop = asyncio.Event()
    running = asyncio.create_task(app.run(bus, stop=stop, idle="100ms"))

    async def ended() -> bool:
        return any(span.name == "settle orders" for span in spans.get_finished_spans())

    await until(ended)
    stop.set()
    await running


@pytest.mark.parametrize("threaded", [False, True])
async def test_one_trace_goes_from_the_publisher_through_the_handler(
    bus: holdfast.Bus, spans: InMemorySpanExporter, threaded: bool
) -> None:
    app, seen = App(), []

    def look(event: Event) -> None:
        seen.append((trace.get_current_span().get_span_context(), ids(), dict(event.headers)))

    async def look_async(event: Event) -> None:
        look(event)

    app.handler(CHANNEL, CONSUMER)(look if threaded else look_async)
    with trace.get_tracer("shop").start_as_current_span("checkout") as checkout:
        await bus.publish(CHANNEL, {"total": 1}, id="o-1", headers={"tenant": "a"})
    await work(bus, app, spans)
    publish, process, settle = (named(spans, f"{verb} orders") for verb in ("publish", "process", "settle"))
    [(inside, logged, headers)] = seen
    trace_id = checkout.get_span_context().trace_id
    assert {context(span).trace_id for span in (publish, process, settle)} == {trace_id}
    assert process.parent is not None
    assert process.parent.span_id == context(publish).span_id
    assert inside.span_id == context(process).span_id
    assert headers.pop("traceparent")[:-3] == f"00-{trace_id:032x}-{context(publish).span_id:016x}"
    assert headers == {"tenant": "a"}
    assert logged["trace_id"] == f"{trace_id:032x}"
    assert logged["event"] == "o-1"
    assert (publish.kind, process.kind) == (SpanKind.PRODUCER, SpanKind.CONSUMER)
    assert process.attributes is not None
    assert process.attributes["messaging.consumer.group.name"] == CONSUMER
    assert process.attributes["messaging.message.id"] == "o-1"
    assert settle.attributes is not None
    assert settle.attributes["holdfast.outcome"] == "done"


async def test_a_poll_links_to_the_publishers_and_an_empty_one_leaves_no_span(
    bus: holdfast.Bus, spans: InMemorySpanExporter
) -> None:
    assert await bus.poll(CHANNEL, CONSUMER) == []
    assert spans.get_finished_spans() == ()
    for number in range(2):
        await bus.publish(CHANNEL, {}, id=str(number))
    published = {context(span).span_id for span in spans.get_finished_spans()}
    jobs = await bus.poll(CHANNEL, CONSUMER, limit=5)
    poll = named(spans, "poll orders")
    assert {link.context.span_id for link in poll.links} == published
    await bus.finalize_many(jobs, success=True)
    settle = named(spans, "settle orders")
    assert {link.context.span_id for link in settle.links} == published
    assert settle.attributes is not None
    assert settle.attributes["messaging.batch.message_count"] == 2


@pytest.mark.parametrize(
    ("error", "status"),
    [(RuntimeError("boom"), StatusCode.ERROR), (holdfast.Snooze("1h"), StatusCode.UNSET)],
)
async def test_a_handler_that_fails_has_a_span_that_says_so_and_a_snooze_has_not(
    bus: holdfast.Bus, spans: InMemorySpanExporter, error: Exception, status: StatusCode
) -> None:
    app = App()

    @app.handler(CHANNEL, CONSUMER)
    async def fail(event: Event) -> None:
        raise error

    await bus.publish(CHANNEL, {})
    await work(bus, app, spans)
    assert named(spans, "process orders").status.status_code is status


def test_the_verbs_without_await_are_in_the_callers_trace(database: str, spans: InMemorySpanExporter) -> None:
    with (
        holdfast.connect_sync(database) as bus,
        trace.get_tracer("shop").start_as_current_span("checkout") as own,
    ):
        bus.publish(CHANNEL, {})
    assert context(named(spans, "publish orders")).trace_id == own.get_span_context().trace_id


async def test_a_context_that_the_caller_gave_stays(bus: holdfast.Bus, spans: InMemorySpanExporter) -> None:
    given = "00-0123456789abcdef0123456789abcdef-0123456789abcdef-01"
    await bus.publish(CHANNEL, {}, headers={"traceparent": given})
    [job] = await bus.poll(CHANNEL, CONSUMER)
    assert job.event.headers == {"traceparent": given}


async def test_a_repeat_within_another_trace_is_the_same_event(
    bus: holdfast.Bus, spans: InMemorySpanExporter
) -> None:
    first = await bus.publish(CHANNEL, {"n": 1}, id="o-1")
    again = await bus.publish(CHANNEL, {"n": 1}, id="o-1")
    assert (again.duplicate, again.position) == (True, first.position)
    traces = {context(span).trace_id for span in spans.get_finished_spans()}
    assert len(traces) == 2


async def test_headers_that_leave_no_room_are_published_as_they_are(
    bus: holdfast.Bus, spans: InMemorySpanExporter
) -> None:
    headers = {f"h{number}": "x" for number in range(MAX_HEADERS)}
    await bus.publish(CHANNEL, {}, headers=headers)
    [job] = await bus.poll(CHANNEL, CONSUMER)
    assert job.event.headers == headers


async def test_a_context_that_is_no_context_does_no_harm(
    bus: holdfast.Bus, spans: InMemorySpanExporter
) -> None:
    app = App()
    app.handler(CHANNEL, CONSUMER)(_nothing)
    await bus.publish(CHANNEL, {}, headers={"traceparent": "rubbish"})
    await work(bus, app, spans)
    assert named(spans, "process orders").parent is None


async def _nothing(event: Event) -> None:
    return None


def test_without_a_provider_no_header_is_added_and_nothing_is_imported(database: str) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", PLAIN, database], capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout) == {"headers": {}, "imported": False}


def test_the_api_alone_without_a_provider_changes_nothing() -> None:
    code = (
        "from opentelemetry import trace; from holdfast import Event, tracing\n"
        "events = [Event({}, 'a')]\n"
        "with tracing.publishing('orders', events) as traced: assert traced is events\n"
        "assert tracing.tracer() is None and tracing.trace_id() is None"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_tracer_follows_the_provider(exporter: InMemorySpanExporter) -> None:
    first: Any = tracing.tracer()
    assert first is tracing.tracer()
    assert first is not None
