"""What a request may cost: each route is asked hostile things, and stays within 64 MiB and 50 ms of the loop.

The routes are those of the router: a new one is here by being there. Each is asked with as much as one can
send to any route; those that take or tell much also with what is worst for them. The slow test prints the
table of docs/security.md.
"""

from __future__ import annotations

import json
import logging
import sys
import tracemalloc
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from application import Application, application
from costs import FORM, JSON, MIB, NDJSON, Cost, Hostile, ask, measure
from fastapi.routing import RouteContext
from scene import ingest, ingest_reporter, with_store
from test_matrix import words
from world import asked, settle

import holdfast
from holdfast.cli.pipeline import pipeline_access
from holdfast.config.load import load
from holdfast.deadletters.items import Filter
from holdfast.deadletters.operation import Request
from holdfast.model.event import Event
from holdfast.model.gc_pause import gc_frozen
from holdfast.pipeline.warehouse import Column, Table, Tables
from holdfast.server.auth.guard import Need, demands
from holdfast.server.routes import routes_of
from kit import bury, claim, subscribe

MEMORY, STEP = 64 * MIB, 0.050
LARGE = b'{"rows":[' + b",".join([b'{"a":[1,2.5,"x"]}'] * 30_000) + b'],"text":"' + b"x" * 450_000 + b'"}'
"""An event's data that is near every limit: 200,000 values and a megabyte."""
EXACT = b'{"n":12345678901234567890123,"rows":[' + b",".join([b"[[1]]"] * 60_000) + b"]}"
"""Data with a number that not every parser keeps, and as many values."""
C, W = "costs", "worker"
DEAD, COPIES = "/api/v1/deadletters", "gbe._deadletter.costs"
CONFIG = """
ingest:
  channels: [costs]
  warehouse: duckdb://{folder}/warehouse.duckdb
  wal: {{path: {folder}/wal}}
  tables: {{costs: {{table: events, columns: {{total: {{path: $.total, type: integer}}}}}}}}
"""


@dataclass(frozen=True)
class Prepared:
    """An application that is full of what is expensive, and how its things are called."""

    found: Application
    names: dict[str, str]

    def routes(self) -> Iterator[tuple[str, list[Hostile]]]:
        """Every route with each of its methods, and what it is asked."""
        special = special_requests(self.names)
        routes = [(each, method) for each in routes_of(self.found.app) for method in each.methods or ()]
        for route, method in sorted(routes, key=_harm):
            template = f"{method} {route.path_format}"
            yield template, [*common_requests(route, method, self.names), *special.pop(template, [])]
        assert not special, f"there are no such routes: {list(special)}"


def _harm(route: tuple[RouteContext, str]) -> tuple[bool, bool, bool]:
    """What looks comes first, and last what leaves nothing to look at."""
    context, method = route
    return method != "GET", str(context.path_format).startswith("/channel/"), method == "DELETE"


def common_requests(route: RouteContext, method: str, names: dict[str, str]) -> Iterator[Hostile]:
    """What can be sent to any route: a body of any size, the longest query, and all that a list gives."""
    path = str(route.path_format).format(**names)
    [need] = demands(route.dependant)
    if method == "GET":
        known = set(words(route))
        said = {"limit": "1000", "id": "large-1"}
        yield Hostile(
            "everything", method, path, query="&".join(f"{k}={v}" for k, v in said.items() if k in known)
        )
        yield Hostile("a query of 10,000 parameters", method, path, query="a&" * 10_000)
    elif isinstance(need, Need) and not need.page:
        yield Hostile("200,000 values", method, path, b'{"x":[' + b"1," * 199_000 + b"1]}")
        yield Hostile("16 MiB of brackets", method, path, b"[" * 16_000_000)
    else:
        most = b"item=x&" * 1_999 + b"x=" + b"%41" * 340_000
        yield Hostile("a form of 2,000 fields", method, path, most, FORM, short=path == "/login")
        yield Hostile("a form of 16 MiB", method, path, b"a" * 16_000_000, FORM)


def special_requests(names: dict[str, str]) -> dict[str, list[Hostile]]:
    """By route: what is worst for it. What is refused must be cheap too."""
    event, exact = b'{"data":' + LARGE + b"}", b'{"data":' + EXACT + b"}"
    text = json.dumps({"data": "\U0001f600" * 250_000}, ensure_ascii=False).encode()
    ends = [{"id": str(n), "token": n, "success": False, "error": "x" * 3_900} for n in range(1000)]
    patch = [{"op": "replace", "path": "/text", "value": "y"}] * 100
    change = {"kind": "patch", "items": [names["item"]], "patch": patch, "dry_run": True}
    items = {"kind": "requeue", "items": [f"job:{C}:{W}:{n}" for n in range(1000)], "dry_run": True}
    some = Made("POST", f"/api/v1/channels/{C}/events/batch")
    lines = Made("POST", f"/api/v1/channels/{C}/events/stream")
    one, log = Made("POST", f"/api/v1/channels/{C}/events"), Made("GET", f"/api/v1/channels/{C}/events")
    consumer = f"/api/v1/channels/{C}/consumers/{W}"
    letter, page = Made("GET", f"{DEAD}/{{}}"), Made("GET", "/deadletters/{}")
    dead, operate = Made("GET", DEAD), Made("POST", "/api/v1/operations")
    form = "&".join(["act=requeue", *(f"item=job:{C}:{W}:{n}" for n in range(1000))]).encode()
    return {
        "POST /api/v1/channels/{channel}/events": [
            one("an event near every limit", event, short=True),
            one("an event with a large number", exact),
            one("16 MiB of digits", b'{"data":' + b"1" * 16_000_000),
        ],
        "POST /api/v1/channels/{channel}/events/batch": [
            some("5.5 million {}", b'{"events":[' + b"{}," * 5_500_000, short=True),
            some("500,000 times 1", b'{"events":[' + b"1," * 500_000 + b"1]}"),
            some("1,000 times 1", b'{"events":[' + b"1," * 999 + b"1]}"),
            some("1,000 events", b'{"events":[' + b'{"data":1},' * 999 + b'{"data":1}]}'),
            some("15 texts of 1 MiB", b'{"events":[' + (text + b",") * 14 + text + b"]}"),
            some("16 MiB of quotes", b'"' * 16_000_000),
        ],
        "POST /api/v1/channels/{channel}/events/stream": [
            lines("one endless line", b'{"data":"' + b"x" * 16_000_000, NDJSON),
            lines("16 million empty lines", b"\n" * 16_000_000, NDJSON),
            lines("10 large lines", (event + b"\n") * 10, NDJSON),
            lines("20,000 small lines", b'{"data":1}\n' * 20_000, NDJSON),
        ],
        "GET /api/v1/channels/{channel}/events": [log("large events", query="limit=1000", short=True)],
        "POST /api/v1/channels/{channel}/consumers/{consumer}/poll": [
            Hostile("1,000 large jobs", "POST", f"{consumer}/poll", b'{"limit":1000}', short=True)
        ],
        "POST /api/v1/channels/{channel}/consumers/{consumer}/finalize": [
            Made("POST", f"{consumer}/finalize")(
                "1,000 long errors", json.dumps({"jobs": ends}).encode(), short=True
            )
        ],
        "PUT /api/v1/channels/{channel}/consumers/{consumer}": [
            Hostile("2 million members", "PUT", consumer, b"{" + b'"a":1,' * 2_000_000 + b'"a":1}')
        ],
        "PUT /api/v1/channels/{channel}/schedules/{schedule}": [
            Hostile(
                "ticks of 280 years",
                "PUT",
                f"/api/v1/channels/{C}/schedules/seldom",
                b'{"cron":"0 0 * 2 MON#5","tz":"Europe/Berlin"}',
                query="dry_run=true",
                short=True,
            )
        ],
        "POST /api/v1/operations": [
            operate("preview of 100 steps on 1 MiB", json.dumps(change).encode()),
            operate("1,000 strange items", json.dumps(items).encode()),
        ],
        f"GET {DEAD}": [
            dead("hostile errors", query="limit=1000", short=True),
            dead("by text", query="text=" + "x" * 500),
            dead("by fingerprint", query="fingerprint=0"),
        ],
        f"GET {DEAD}/{{item}}": [
            letter(f"{name} data", what=names[name], short=name == "large") for name in ("large", "exact")
        ],
        "GET /deadletters/{item}": [
            *(page(f"{name} data", what=names[name]) for name in ("large", "exact")),
            page("large data, whole", what=names["large"], query="whole=true"),
        ],
        "POST /deadletters/ask": [Hostile("1,000 strange items", "POST", "/deadletters/ask", form, FORM)],
        "POST /deadletters/do": [Hostile("1,000 strange items", "POST", "/deadletters/do", form, FORM)],
    }


@dataclass(frozen=True)
class Made:
    """Makes requests to one route."""

    method: str
    path: str

    def __call__(
        self,
        name: str,
        body: bytes = b"",
        kind: str = JSON,
        *,
        query: str = "",
        what: str = "",
        short: bool = False,
    ) -> Hostile:
        return Hostile(name, self.method, self.path.format(what), body, kind, query, short)


async def prepare(bus: holdfast.Bus, found: Application, failed: str) -> dict[str, str]:
    """A log, jobs, dead letters and messages that are as large as they may be, and many small things."""
    store = bus.partitions.all[0].backend
    dead = {}
    for name, data in (("large", LARGE), ("exact", EXACT)):
        await bus.publish_many(C, [Event(data, f"dead-{name}")])
        [job] = await claim(store, 1, channel=C, consumer=W)
        assert await bury(store, job)
        dead[name] = job.id
    for n in range(24):
        await bus.publish_many(C, [Event(LARGE, f"large-{n}")])
    for n in range(100):
        told = {"holdfast-channel": C, "holdfast-error": "a" * 16_000}
        await store.log.publish(COPIES, [Event(LARGE if n % 10 == 0 else b"1", f"m-{n}", headers=told)])
    for n in range(200):
        await bus.create_channel(f"small-{n}")
        await found.system.audit.did("somebody", "x" * 500, "y" * 500, "z" * 500)
    wanted = Filter.of(channel=C, consumer=W, reason="nothing")
    many = Request("requeue", items=tuple(f"job:{C}:{W}:{n}" for n in range(1000)))
    operation = await found.system.operations.ask(many, "somebody")
    for _ in range(20):
        await found.system.operations.ask(Request("purge", wanted), "somebody")
    items = {name: f"job:{C}:{W}:{each}" for name, each in dead.items()}
    for number in range(100):
        await bus.schedule(f"nightly-{number}", C, cron="0 0 29 2 MON#5", data=b"x" * 65_536)
    return {
        "schedule": "nightly-0",
        **dict.fromkeys(("channel", "channelId"), C),
        **dict.fromkeys(("consumer", "consumerId"), W),
        **items,
        "item": items["large"],
        "jobId": dead["large"],
        "operation": operation.id,
        "failed": failed,
        "act": "retry",
    }


@pytest.fixture
async def prepared(
    each: holdfast.Bus, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> AsyncIterator[Prepared]:
    caplog.set_level(logging.ERROR)
    file = tmp_path / "holdfast.yaml"
    file.write_text(CONFIG.format(folder=tmp_path))
    url = each.partitions.all[0].backend.url
    receipts = [await each.publish(C, {"total": "x" * 1000}) for _ in range(50)]
    await subscribe(each.partitions.all[0].backend, W, channel=C)
    table = Tables({C: Table("events", (Column("total", "$.total", "integer"),))})
    ingest(tmp_path, table, C, [(receipt.id, receipt.position) for receipt in receipts])
    await with_store(url, ingest_reporter(tmp_path).look)
    with pipeline_access(load(file).config, file, [url]) as books:
        assert books is not None
        assert books.records is not None
        async with application(each, pipeline=books, limits={"rate": 0}) as found:
            names = await prepare(each, found, books.records.find()[0].id)
            await found.app.state.snapshots.take()
            with gc_frozen():  # as `serve` does it
                yield Prepared(found, names)


@pytest.mark.parametrize(
    "url",
    ["database", *(pytest.param(store, marks=pytest.mark.slow) for store in ("empty_redis", "empty_nats"))],
    indirect=True,
)
async def test_hostile_requests_stay_within_their_limits(prepared: Prepared) -> None:
    """The worst of them."""
    for route, requests in prepared.routes():
        for request in [each for each in requests if each.short]:
            check(route, request, await measure(prepared.found, request))


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_every_route_stays_within_its_limits(
    prepared: Prepared, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each with the request that took it longest, as docs/security.md has it."""
    rows, over = [], []
    for route, requests in prepared.routes():
        costs = []
        for request in requests:
            cost = await measure(prepared.found, request)
            costs.append((cost.seconds, request.name, cost))
            try:
                check(route, request, cost)
            except AssertionError as error:
                over.append(str(error).partition("\n")[0])
        _, name, worst = max(costs, key=lambda each: each[0])
        size = max(cost.size for *_, cost in costs)
        told = f"`{route}` | {name} | {worst.status} | {1000 * worst.seconds:.0f} | {size / MIB:.0f}"
        rows.append(f"| {told} |")
    with capsys.disabled():
        sys.stdout.write("\n".join(["", *rows, ""]))
    assert not over, "\n".join(over)


def check(route: str, request: Hostile, cost: Cost) -> None:
    told = f"{route}, {request.name}: {cost}"
    assert 200 <= cost.status < 500, told
    assert cost.size < MEMORY, told
    assert cost.seconds < STEP, told


async def test_a_stranger_costs_nothing(bus: holdfast.Bus) -> None:
    """Without a token, 16 MiB sent to any route that takes a body are not looked at."""
    world = await settle(bus)
    body = b"[" * 16_000_000
    async with application(bus, open=False) as found:
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
