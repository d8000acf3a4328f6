"""What a request may cost: each hostile one is measured, in memory and in time on the event loop.

Time is the processor time of the longest step of the event loop while the request runs: for so long nobody
else is served. Memory is what Python has allocated at the peak, above what it had before. The application is
asked without a network: nothing of a client is measured. The slow test prints the table of docs/security.md.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
import tracemalloc
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from house import House, house
from world import asked, settle

import holdfast
from holdfast.model.event import Event
from kit import bury, claim, subscribe

MIB = 1 << 20
CHUNK = 64 << 10
LARGE = b'{"rows":[' + b",".join([b'{"a":[1,2.5,"x"]}'] * 30_000) + b'],"text":"' + b"x" * 450_000 + b'"}'
"""An event's data that is near every limit: 200,000 values and a megabyte."""
JSON, NDJSON = "application/json", "application/x-ndjson"
C, W = "costs", "worker"
EVENTS = f"/api/v1/channels/{C}/events"
DEAD, OPERATIONS = "/api/v1/deadletters", "/api/v1/operations"
CONSUMER = f"/api/v1/channels/{C}/consumers/{W}"


@dataclass(frozen=True)
class Hostile:
    """A request that is meant to be expensive."""

    name: str
    method: str
    path: str
    body: bytes = b""
    kind: str = JSON
    query: str = ""
    short: bool = False
    """Whether every run of the tests measures it."""


@dataclass
class Cost:
    """What one request took."""

    status: int = 0
    seconds: float = 0.0
    """The longest step of the event loop."""
    size: int = 0
    """The most memory."""
    answered: int = 0
    """Bytes of the answer."""
    steps: list[float] = field(default_factory=list)


def requests(item: str) -> Iterator[Hostile]:
    """By route. What is refused must be cheap too."""
    event = b'{"data":' + LARGE + b"}"
    text = json.dumps({"data": "\U0001f600" * 250_000}, ensure_ascii=False).encode()
    yield Hostile("one event near every limit", "POST", EVENTS, event, short=True)
    yield Hostile("one event, 16 MiB of brackets", "POST", EVENTS, b'{"data":' + b"[" * 16_000_000)
    yield Hostile("one event, 16 MiB of digits", "POST", EVENTS, b'{"data":' + b"1" * 16_000_000)
    batch = f"{EVENTS}/batch"
    yield Hostile("batch of 5.5 million {}", "POST", batch, b'{"events":[' + b"{}," * 5_500_000, short=True)
    yield Hostile("batch of 500,000 times 1", "POST", batch, b'{"events":[' + b"1," * 500_000 + b"1]}")
    yield Hostile("batch of 1,000 times 1", "POST", batch, b'{"events":[' + b"1," * 999 + b"1]}")
    yield Hostile(
        "batch of 15 texts of 1 MiB", "POST", batch, b'{"events":[' + (text + b",") * 14 + text + b"]}"
    )
    yield Hostile("batch, 16 MiB of quotes", "POST", batch, b'"' * 16_000_000)
    lines = f"{EVENTS}/stream"
    yield Hostile("stream of one endless line", "POST", lines, b'{"data":"' + b"x" * 16_000_000, NDJSON)
    yield Hostile("stream of 16 million empty lines", "POST", lines, b"\n" * 16_000_000, NDJSON)
    yield Hostile("stream of 10 large lines", "POST", lines, (event + b"\n") * 10, NDJSON)
    yield Hostile("a log of large events", "GET", EVENTS, query="limit=1000", short=True)
    yield Hostile("a poll for 1,000 large jobs", "POST", f"{CONSUMER}/poll", b'{"limit":1000}', short=True)
    ends = [{"id": str(n), "token": n, "success": False, "error": "x" * 3_900} for n in range(1000)]
    yield Hostile(
        "1,000 endings with long errors", "POST", f"{CONSUMER}/finalize", json.dumps({"jobs": ends}).encode()
    )
    wide = b"{" + b'"a":1,' * 2_000_000 + b'"a":1}'
    yield Hostile("an object of 2 million members", "PUT", CONSUMER, wide)
    patch = [{"op": "replace", "path": "/text", "value": "y"}] * 100
    change = {"kind": "patch", "items": [item], "patch": patch, "dry_run": True}
    yield Hostile("preview of 100 steps on 1 MiB", "POST", OPERATIONS, json.dumps(change).encode())
    items = {"kind": "requeue", "items": [f"job:{C}:{W}:{n}" for n in range(1000)], "dry_run": True}
    yield Hostile("an operation on 1,000 strange items", "POST", OPERATIONS, json.dumps(items).encode())
    yield Hostile("a large dead letter", "GET", f"/api/v1/deadletters/{item}")
    yield Hostile("dead letters with hostile errors", "GET", DEAD, query="limit=1000", short=True)
    yield Hostile("the same by text", "GET", DEAD, query="text=" + "x" * 500)
    yield Hostile("the same by fingerprint", "GET", DEAD, query="fingerprint=0")
    yield Hostile("a query of 10,000 parameters", "GET", EVENTS, query="a&" * 10_000)
    yield Hostile("a page of a large dead letter", "GET", f"/deadletters/{item}")
    yield Hostile("the page of dead letters", "GET", "/deadletters")


async def prepare(bus: holdfast.Bus) -> str:
    """A log, jobs, dead letters and messages that are as large as they may be."""
    store = bus.partitions.all[0].backend
    await subscribe(store, W, channel=C)
    for n in range(24):
        await bus.publish_many(C, [Event(LARGE, f"large-{n}")])
    [dead] = await claim(store, 1, channel=C, consumer=W)
    assert await bury(store, dead)
    for n in range(100):
        told = {"holdfast-channel": C, "holdfast-error": "a" * 16_000}
        data = LARGE if n % 10 == 0 else b"1"
        await store.publish("gbe._deadletter.costs", [Event(data, f"m-{n}", headers=told)])
    return f"job:{C}:{W}:{dead.id}"


@contextmanager
def watched(cost: Cost) -> Iterator[None]:
    """Note how long each step of the event loop takes, by the clock of its thread."""
    run = asyncio.Handle._run

    def timed(handle: asyncio.Handle) -> None:
        began = time.thread_time()
        run(handle)
        cost.seconds = max(cost.seconds, time.thread_time() - began)

    asyncio.Handle._run = timed  # type: ignore[method-assign]
    try:
        yield
    finally:
        asyncio.Handle._run = run  # type: ignore[method-assign]


async def ask(found: House, request: Hostile, cost: Cost) -> None:
    """Send it to the application, and throw its answer away."""
    places = iter(range(0, max(len(request.body), 1), CHUNK))

    async def receive() -> dict[str, Any]:
        place = next(places, None)
        if place is None:
            await asyncio.Event().wait()
        part = request.body[place : (place or 0) + CHUNK]
        return {"type": "http.request", "body": part, "more_body": (place or 0) + CHUNK < len(request.body)}

    async def send(message: dict[str, Any]) -> None:
        cost.status = message.get("status", cost.status)
        cost.answered += len(message.get("body", b""))

    scope = {
        "type": "http",
        "http_version": "1.1",
        "method": request.method,
        "scheme": "http",
        "path": request.path,
        "raw_path": request.path.encode(),
        "query_string": request.query.encode(),
        "client": ("127.0.0.1", 1),
        "server": ("localhost", 80),
        "headers": [(b"host", b"localhost"), (b"content-type", request.kind.encode())],
    }
    await asyncio.create_task(found.app(scope, receive, send))  # type: ignore[arg-type]


async def measure(found: House, request: Hostile) -> Cost:
    """Its time first, then its memory, which takes time to note."""
    cost, again = Cost(), Cost()
    with watched(cost):
        await ask(found, request, cost)
    tracemalloc.start()
    try:
        await ask(found, request, again)
        cost.size = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    return cost


@pytest.fixture
async def prepared(bus: holdfast.Bus) -> AsyncIterator[tuple[House, str]]:
    item = await prepare(bus)
    async with house(bus) as found:
        yield found, item


async def test_hostile_requests_stay_within_their_limits(prepared: tuple[House, str]) -> None:
    """The worst of them. The bound on time is ten times what is promised: machines differ, and are busy."""
    found, item = prepared
    for request in requests(item):
        if request.short:
            cost = await measure(found, request)
            assert 200 <= cost.status < 500, request.name
            assert cost.size < 64 * MIB, f"{request.name}: {cost.size >> 20} MiB"
            assert cost.seconds < 0.5, f"{request.name}: {1000 * cost.seconds:.0f} ms"


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_the_table_of_costs(prepared: tuple[House, str], capsys: pytest.CaptureFixture[str]) -> None:
    """Every one, printed as docs/security.md has it."""
    found, item = prepared
    rows = [
        "| request | status | memory, MiB | longest step, ms | answer, KiB |",
        "|---|---:|---:|---:|---:|",
    ]
    over = []
    for request in requests(item):
        cost = await measure(found, request)
        figures = f"{cost.size / MIB:.0f} | {1000 * cost.seconds:.0f} | {cost.answered >> 10}"
        rows.append(f"| {request.name} | {cost.status} | {figures} |")
        assert 200 <= cost.status < 500, request.name
        if cost.size > 64 * MIB or cost.seconds > 0.2:
            over.append(rows[-1])
    with capsys.disabled():
        sys.stdout.write("\n".join(["", *rows, ""]))
    assert not over


async def test_a_stranger_costs_nothing(bus: holdfast.Bus) -> None:
    """Without a token, 16 MiB sent to any route that takes a body are not looked at."""
    world = await settle(bus)
    body = b"[" * 16_000_000
    async with house(bus, open=False) as found:
        await found.token("admin")
        for each in asked(found):
            if each.method in ("POST", "PUT", "PATCH"):
                cost = Cost()
                request = Hostile(each.operation, each.method, world.path(each.template), body)
                tracemalloc.start()
                try:
                    await ask(found, request, cost)
                    size = tracemalloc.get_traced_memory()[1]
                finally:
                    tracemalloc.stop()
                assert cost.status == 401, each
                assert size < MIB, each
