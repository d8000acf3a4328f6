"""The matrix: every route, with every kind of token, about one's own things, another's, and unknown ones.

The routes are those of the router: a new one is here by being there. What no token of tenant A may do: get an
answer that tells of tenant B, get another answer about what B has than about what nobody has, or change
anything of B's. Nor does it take longer: the store is asked the same things. No call ends in an error of the
server.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import inspect
import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import httpx
import pytest
from application import Application, application
from fastapi import Depends
from fastapi.routing import RouteContext
from scene import ingest
from tenants import Target, as_body, everything_of, picture, settle, unknown

import holdfast
from holdfast.cli.pipeline import pipeline_access
from holdfast.config.load import load
from holdfast.contracts import Backend
from holdfast.model.errors import NotFound
from holdfast.pipeline.warehouse import Column, Table, Tables
from holdfast.server.api.models import Channel
from holdfast.server.auth.caller import Caller
from holdfast.server.auth.guard import COOKIE, Need, Router, demands, needs
from holdfast.server.routes import routes_of
from holdfast.server.system import Known
from kit import NOUNS

A, B, NOBODY = "tenant-a", "tenant-b", "tenant-x"
CONFIG = """
ingest:
  channels: [tenant-a.orders, tenant-b.orders]
  warehouse: duckdb://{folder}/warehouse.duckdb
  wal: {{path: {folder}/wal}}
  tables:
    tenant-a.orders: {{table: events, columns: {{total: {{path: $.total, type: integer}}}}}}
    tenant-b.orders: {{table: events, columns: {{total: {{path: $.total, type: integer}}}}}}
"""
TABLE = Table("events", (Column("total", "$.total", "integer"),))
SCOPES: dict[str, tuple[str, ...]] = {
    "producer": ("producer", f"{A}.>"),
    "reader": ("reader", f"{A}.>"),
    "channel": ("channel", f"{A}.orders"),
    "consumer": ("consumer", f"{A}.orders", f"{A}-worker"),
    "copies": ("channel", f"gbe._deadletter.{A}"),
    "namespace": ("reader", "gbe.>"),
}
IDS = {"jobId", "item", "operation", "failed"}
VARYING = re.compile(r'\d+ (?:s|min|h|d)\b|"age_seconds": ?[\d.]+|expires=[^;]+|name="seen" value="[^"]*"')
"""What differs from one moment to the next."""


Way = tuple[str, str, dict[str, str], dict[str, str], dict[str, Any]]
"""A method, a path, a query, headers, and what is sent."""


@dataclass(frozen=True)
class Token:
    """What a caller shows: to a route for programs, and to a page."""

    name: str
    headers: dict[str, str]
    session: str | None
    """None: pages are not asked."""
    valid: bool = True


@dataclass
class Matrix:
    """The application, whose tenants are settled, and what was found out about it."""

    found: Application
    own: Target
    other: Target
    nobody: Target
    tokens: list[Token]
    faults: list[str]
    served: int = 0
    thorough: bool = False
    """Every token asks a route in every way that there is; else each in one, and all of them in all."""
    judged: set[str] = field(default_factory=set)
    """Readings that name nobody, which were asked already."""
    steps: list[str] = field(default_factory=list)
    """What the store was asked since the last call began."""

    async def walk(self, under: str = "/") -> list[str]:
        """Ask every route; returns what must not be. Readings come first: what is one's own is there then."""
        routes = [each for each in asked(self.found) if each[0].path_format.startswith(under)]
        routes.sort(key=lambda each: each[1] != "GET")
        before = await picture(self.found, self.other)
        for route, method in routes:
            for token in self.tokens:
                await self._compare(route, method, token)
            after = await picture(self.found, self.other)
            if after != before:
                self.faults.append(f"{method} {route.path_format} changed what {B} has")
            before = after
        for route, method in routes:
            for token in [each for each in self.tokens if each.valid]:
                for way in self.ways(route, method, token, self.own):
                    if method != "GET" or str(way) not in self.judged:
                        self._judge(route, method, token, await call(self.found, *way))
        if await picture(self.found, self.other) != before:
            self.faults.append(f"calls about {A} changed what {B} has")
        return self.faults

    async def _compare(self, route: RouteContext, method: str, token: Token) -> None:
        """Another's and nobody's, and one's own with another's ids and nobody's: the same answer."""
        targets = [(self.other, self.nobody)]
        if IDS & set(route.param_convertors or ()) and token.valid:
            targets.append((self.own.crossed(self.other), self.own.crossed(self.nobody)))
        for theirs, nobodys in targets:
            pairs = zip(
                self.ways(route, method, token, theirs),
                self.ways(route, method, token, nobodys),
                strict=True,
            )
            for their_way, nobodys_way in pairs:
                one, asked_for_theirs = await self._call(their_way)
                if not token.valid and one.status_code == 401:
                    continue  # refused for who asks: nothing was looked up that could tell them apart
                if their_way == nobodys_way:
                    self._judge(route, method, token, one)
                    self.judged.add(str(their_way))
                    continue
                two, asked_for_nobodys = await self._call(nobodys_way)
                self._judge(route, method, token, two)
                if asked_for_theirs != asked_for_nobodys:
                    self._fault(
                        route, method, token, f"takes other steps: {asked_for_theirs} / {asked_for_nobodys}"
                    )
                if plain(one, theirs) != plain(two, nobodys):
                    self._fault(
                        route, method, token, f"tells them apart: {one.text[:300]} / {two.text[:300]}"
                    )

    async def _call(self, way: Way) -> tuple[httpx.Response, list[str]]:
        """The answer, and what the store was asked for it."""
        self.found.system.audit._refused.clear()  # it tells of the first refusals only
        self.steps.clear()
        answer = await call(self.found, *way)
        return answer, list(self.steps)

    def _judge(self, route: RouteContext, method: str, token: Token, answer: httpx.Response) -> None:
        """A call that did not name tenant B."""
        self.served += answer.status_code < 300
        if answer.status_code >= 500:
            self._fault(route, method, token, f"{answer.status_code} {answer.text[:300]}")
        told = unquote(everything_of(answer))
        if B in told:
            around = told[max(told.index(B) - 150, 0) :][:300]
            self._fault(route, method, token, f"tells of {B}: {around}")

    def _fault(self, route: RouteContext, method: str, token: Token, what: str) -> None:
        self.faults.append(f"{method} {route.path_format} with {token.name}: {what}")

    def ways(self, route: RouteContext, method: str, token: Token, target: Target) -> list[Way]:
        """How a token asks a route about a target; those who have no session ask no page."""
        need = next(demands(route.dependant), None)
        path = str(route.path_format).format(**target.names)
        page = isinstance(need, Need) and need.page
        if page and token.session is None:
            return []
        known = set(words(route))
        if page and isinstance(need, Need) and need.filtered:  # these take their queries apart themselves
            known |= {"channel", "consumer", "item", "act"}
        if method != "GET" and page:
            sent: list[dict[str, Any]] = [{"data": each | csrf(token)} for each in target.forms()]
        else:
            sent = [as_body(each) for each in target.bodies(str(route.name))]
        headers = self.found.form | {"Cookie": f"{COOKIE}={token.session}"} if page else token.headers
        queries = target.queries(known) if method == "GET" else [{}]
        ways = [(method, path, query, headers, each) for query in queries for each in sent]
        if not token.valid:
            return ways[-1:]
        if self.thorough or token not in self.tokens:
            return ways
        return [ways[self.tokens.index(token) % len(ways)]]


def asked(found: Application) -> Iterator[tuple[RouteContext, str]]:
    """Every route with each of its methods, but for the end of a session."""
    for route in routes_of(found.app):
        for method in sorted(route.methods or ()):
            if route.path_format != "/logout":
                yield route, method


def words(route: RouteContext) -> Iterator[str]:
    """What its query can say."""
    waiting = [route.dependant]
    for each in waiting:
        waiting += each.dependencies
        yield from (field.alias for field in each.query_params)


def csrf(token: Token) -> dict[str, str]:
    """What a form of a page carries, as the page would tell it."""
    held = token.session or ""
    return {"csrf": hmac.new(held.encode(), b"holdfast form", hashlib.sha256).hexdigest() if held else ""}


def plain(answer: httpx.Response, target: Target) -> str:
    """An answer without the names that its caller sent."""
    told = VARYING.sub("TIME", unquote(unquote(everything_of(answer))))
    stands = target.message.split(":")[1]
    sent = {*target.names.values(), target.message, stands, target.cursor} - {"retry"}
    sent |= {text[:100] for text in sent}  # a problem shows no more of what was sent
    for number, text in enumerate(sorted(sent, key=len, reverse=True)):
        told = re.sub(rf"(?<![\w-]){re.escape(text)}(?![\w-])", f"<{len(sent) - number}>", told)
    return re.sub(r"<\d+>", "<sent>", told)


async def call(
    found: Application,
    method: str,
    path: str,
    query: dict[str, str],
    headers: dict[str, str],
    sent: dict[str, Any],
) -> httpx.Response:
    """One call. Of a live page the first piece is taken, and its reader leaves."""
    headers = headers | sent.get("headers", {})
    rest = {name: value for name, value in sent.items() if name != "headers"}
    request = found.client.build_request(method, path, params=query, headers=headers, **rest)
    found.client.cookies.clear()
    if not path.startswith("/live/"):
        return await found.client.send(request)
    return await first_piece(found, request)


async def first_piece(found: Application, request: httpx.Request) -> httpx.Response:
    told, left, sent = list[dict[str, Any]](), asyncio.Event(), list[bool]()

    async def send(message: Any) -> None:
        told.append(message)
        if message.get("body"):
            left.set()

    async def receive() -> dict[str, Any]:
        if not sent:
            sent.append(True)
            return {"type": "http.request", "body": b"", "more_body": False}
        await left.wait()
        return {"type": "http.disconnect"}

    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": request.method,
        "scheme": request.url.scheme,
        "path": request.url.path,
        "raw_path": request.url.raw_path.partition(b"?")[0],
        "query_string": request.url.query,
        "root_path": "",
        "headers": [(name.lower(), value) for name, value in request.headers.raw],
        "client": ("127.0.0.1", 1),
        "server": (request.url.host, None),
        "state": {},
    }
    await found.app(scope, receive, send)
    body = b"".join(each.get("body", b"") for each in told[1:])
    return httpx.Response(told[0]["status"], headers=told[0]["headers"], content=body)


@pytest.fixture
async def matrix(
    bus: holdfast.Bus, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Matrix]:
    """Two tenants, one that nobody knows, and the tokens of the first."""
    caplog.set_level(logging.ERROR)  # thousands of calls are refused
    for name in (A, B):
        receipt = await bus.publish(f"{name}.orders", {"total": "x"}, id=f"{name}-failed")
        tables = Tables({f"{name}.orders": TABLE})
        ingest(tmp_path, tables, f"{name}.orders", [(receipt.id, receipt.position)])
    file = tmp_path / "holdfast.yaml"
    file.write_text(CONFIG.format(folder=tmp_path))
    with pipeline_access(load(file).config, file, [bus.partitions.all[0].backend.url]) as books:
        assert books is not None
        assert books.records is not None
        failed = {each.channel: each.id for each in books.records.find()}
        async with application(bus, local=False, pipeline=books, limits={"rate": 0}) as found:
            own, other = [await settle(found, name, failed[f"{name}.orders"]) for name in (A, B)]
            await found.app.state.snapshots.take()
            tokens = await tokens_of(found)
            matrix = Matrix(found, own, other, unknown(other, B, NOBODY), tokens, [])
            await found.system.cursors.seal(Caller("", ()), "", "")  # its secret is read once
            note_calls(bus.partitions.all[0].backend, matrix.steps, monkeypatch)
            yield matrix


def note_calls(store: Backend, steps: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Note every call of a store by the name of its method."""

    def noted(name: str, method: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def note(*given: Any, **more: Any) -> Any:
            steps.append(name)
            return await method(*given, **more)

        return note

    for noun in (store, *(getattr(store, name) for name in NOUNS)):
        for name in dir(noun):
            if not name.startswith("_") and inspect.iscoroutinefunction(getattr(noun, name)):
                called = f"{type(noun).__name__}.{name}"
                monkeypatch.setattr(noun, name, noted(called, getattr(noun, name)))


async def tokens_of(found: Application) -> list[Token]:
    """Every kind of token of tenant A."""
    shown = [
        Token("none", {}, "", valid=False),
        Token("invalid", {"Authorization": "Bearer x"}, "x", valid=False),
    ]
    for name, scope in SCOPES.items():
        shown.append(await shown_by(found, name, await found.token(*scope)))
    revoked = await found.token("admin")
    shown.append(replace(await shown_by(found, "revoked", revoked), valid=False))
    await found.tokens.revoke(revoked.split("_")[1])
    pair = {
        "X-Broker-Channel-Token": await found.token(*SCOPES["channel"]),
        "X-Broker-Consumer-Token": await found.token(*SCOPES["consumer"]),
    }
    return [*shown, Token("pair", pair, None)]


async def shown_by(found: Application, name: str, text: str) -> Token:
    session = await found.system.sessions.begin(text)
    return Token(name, {"Authorization": f"Bearer {text}"}, session or "")


@pytest.mark.parametrize("thorough", [False, pytest.param(True, marks=pytest.mark.slow)])
async def test_no_token_learns_of_another_tenant_or_changes_anything_there(
    matrix: Matrix, thorough: bool
) -> None:
    matrix.thorough = thorough
    assert await matrix.walk() == []
    assert matrix.served > 100, "one's own things must be reached, or nothing was tried"


async def test_an_admin_is_let_in_by_every_route(matrix: Matrix) -> None:
    """The control: the same calls about one's own things are not refused for who asks."""
    admin = await shown_by(matrix.found, "admin", await matrix.found.token("admin"))
    guarded = [each for each in asked(matrix.found) if isinstance(next(demands(each[0].dependant)), Need)]
    for route, method in sorted(guarded, key=lambda each: each[1] != "GET"):
        for way in matrix.ways(route, method, admin, matrix.own):
            answer = await call(matrix.found, *way)
            assert answer.status_code not in (401, 403), f"{method} {route.path_format}: {answer.text}"
            assert answer.status_code < 500, f"{method} {route.path_format}: {answer.text}"


def hole_without_demand() -> Router:
    router = Router()

    @router.get("/planted/log/{channel}")
    async def planted(channel: Channel, system: Known) -> list[str]:
        store = await system.deadletters.store(0)
        return [each.event.id for each in await store.log.read(channel, None, 10)]

    return router


def hole_in_a_list() -> Router:
    router = Router()

    @router.get("/planted/list")
    async def planted(system: Known, caller: Caller = Depends(needs("read", filtered=True))) -> list[str]:  # noqa: B008
        return [each.channel for each in await system.deadletters.status()]

    return router


def hole_that_tells_what_exists() -> Router:
    router = Router()

    @router.get("/planted/operations/{operation}")
    async def planted(
        operation: str,
        system: Known,
        caller: Caller = Depends(needs("read", filtered=True)),  # noqa: B008
    ) -> str:
        found = await system.operations.show(operation)
        if not caller.may("read", found.request.filter.where.channel if found.request.filter else None):
            raise NotFound("it is not yours")
        return found.id

    return router


def hole_that_changes() -> Router:
    router = Router()

    @router.post("/planted/{channel}/{consumer}")
    async def planted(channel: Channel, consumer: str, system: Known) -> None:
        try:
            await (await system.deadletters.store(0)).channels.set_paused(channel, consumer, True)
        except NotFound:
            return

    return router


HOLES = {
    hole_without_demand: "GET /planted/log/{channel} with none: tells them apart",
    hole_in_a_list: "GET /planted/list with reader: tells of tenant-b",
    hole_that_tells_what_exists: "GET /planted/operations/{operation} with channel: tells them apart",
    hole_that_changes: "POST /planted/{channel}/{consumer} changed what tenant-b has",
}


async def test_a_hole_is_found(matrix: Matrix) -> None:
    """Planted routes: the matrix has them by their being there, and must say what is wrong with each."""
    for hole in HOLES:
        matrix.found.app.include_router(hole())
    faults = await matrix.walk("/planted")
    for found in HOLES.values():
        assert [each for each in faults if each.startswith(found)], (found, faults)
