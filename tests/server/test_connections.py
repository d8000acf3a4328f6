"""Connections: slow, silent, broken and numerous clients. The others are served meanwhile."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI, Request, Response
from fastapi.responses import StreamingResponse
from running import running

import holdfast
from holdfast.config.config import ServerLimits
from holdfast.model.scopes import scope_of
from holdfast.server import problems
from holdfast.server.auth.tokens import Tokens
from holdfast.server.http import HttpService, listen, peer_address
from holdfast.server.limits import OncePerMinute
from holdfast.server.middleware import Limiter
from kit import until

SOON = "200ms"
HEAD = b"GET /size/2 HTTP/1.1\r\nHost: a\r\n"
POST = b"POST /echo HTTP/1.1\r\nHost: a\r\n"
UNDER_200_DESCRIPTORS = (
    "import resource, runpy; resource.setrlimit(resource.RLIMIT_NOFILE, (200, 200)); "
    "runpy.run_module('holdfast.cli', run_name='__main__')"
)


@dataclass
class Served:
    """A server, and what its application saw."""

    part: HttpService
    port: int
    task: asyncio.Task[None]
    seen: list[str] = field(default_factory=list)

    @asynccontextmanager
    async def connect(self, sent: bytes = b"", source: str = "127.0.0.1") -> AsyncIterator[Client]:
        with socket.socket() as mine:
            mine.setblocking(False)
            mine.bind((source, 0))
            client = Client(mine)
            await client.loop.sock_connect(mine, ("127.0.0.1", self.port))
            await client.send(sent)
            yield client


class Client:
    """One connection of a client that does as it likes."""

    def __init__(self, mine: socket.socket) -> None:
        self._socket, self._read = mine, b""
        self.loop = asyncio.get_running_loop()

    async def send(self, data: bytes) -> None:
        await self.loop.sock_sendall(self._socket, data)

    async def more(self) -> bool:
        """Read on; whether there was anything before the end of the connection."""
        try:
            data = await self.loop.sock_recv(self._socket, 65536)
        except ConnectionResetError:
            return False
        self._read += data
        return bool(data)

    async def rest(self) -> bytes:
        """Everything until the server ends the connection."""
        while await self.more():
            continue
        return self._read

    async def until(self, end: bytes) -> bytes:
        while end not in self._read:
            assert await self.more(), f"the connection ended after {self._read!r}"
        found, _, self._read = self._read.partition(end)
        return found

    async def exactly(self, size: int) -> bytes:
        while len(self._read) < size:
            assert await self.more(), f"the connection ended after {self._read!r}"
        found, self._read = self._read[:size], self._read[size:]
        return found

    @asynccontextmanager
    async def trickle(self, data: bytes) -> AsyncIterator[None]:
        """Send it again and again, for as long as the server takes it."""

        async def send() -> None:
            with suppress(OSError):
                while True:
                    await self.send(data)
                    await asyncio.sleep(0.01)

        sending = asyncio.create_task(send())
        yield
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)

    async def answer(self) -> tuple[int, dict[str, str], bytes]:
        """One answer with a length."""
        head = (await self.until(b"\r\n\r\n")).decode()
        first, *lines = head.strip().split("\r\n")
        headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
        body = await self.exactly(int(headers.get("content-length", "0")))
        return int(first.split()[1]), headers, body

    async def problem(self, status: int) -> str:
        """The detail of a problem, after which the connection ends."""
        found, headers, body = await self.answer()
        assert found == status, body
        assert headers["content-type"] == "application/problem+json"
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["connection"] == "close"
        assert await self.rest() == b""
        told = json.loads(body)
        assert told["status"] == status
        return str(told["detail"])


def application(seen: list[str], limits: ServerLimits) -> FastAPI:
    app = FastAPI()
    problems.install(app)
    app.add_middleware(Limiter, limits=limits)

    @app.get("/size/{number}")
    async def size(number: int) -> Response:
        seen.append("size")
        return Response(b"x" * number)

    @app.post("/echo")
    async def echo(request: Request) -> Response:
        seen.append("begun")
        body = await request.body()
        seen.append("read")
        return Response(body)

    @app.post("/early")
    async def early() -> Response:
        return Response(b"no", 413)

    @app.get("/endless")
    async def endless() -> Response:
        async def pieces() -> AsyncIterator[bytes]:
            try:
                while True:
                    yield b"x" * 65536
                    await asyncio.sleep(0)
            finally:
                seen.append("ended")

        return StreamingResponse(pieces())

    @app.get("/wait")
    async def wait(request: Request) -> Response:
        seen.append("waits")
        while (await request.receive())["type"] != "http.disconnect":
            continue
        return Response()

    return app


@asynccontextmanager
async def served(proxies: Sequence[str] = (), **limits: Any) -> AsyncIterator[Served]:
    patient = dict.fromkeys(("header_timeout", "body_timeout", "write_timeout"), "5m")
    seen, known = list[str](), ServerLimits.model_validate({**patient, **limits})
    part = HttpService(application(seen, known), listen("127.0.0.1", 0), None, known, proxies)
    task = asyncio.create_task(part.run())

    async def started() -> bool:
        return part.server is not None and part.server.started

    try:
        await until(started)
        yield Served(part, int(part.url.rpartition(":")[2]), task, seen)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@contextmanager
def quiet(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """No error and no traceback is logged."""
    caplog.set_level(logging.WARNING)
    yield
    assert [each for each in caplog.records if each.levelno >= logging.ERROR or each.exc_info] == []


@pytest.mark.parametrize("sent", [b"", b"G", HEAD, HEAD + b"X-Half: "])
async def test_a_request_without_complete_headers_ends(sent: bytes, caplog: pytest.LogCaptureFixture) -> None:
    with quiet(caplog):
        async with served(header_timeout=SOON) as server, server.connect(sent) as client:
            if sent:
                assert "the headers did not come within 0.2 s" in await client.problem(408)
            else:
                assert await client.rest() == b""
            assert server.seen == []


async def test_a_byte_now_and_then_gives_headers_no_more_time() -> None:
    async with (
        served(header_timeout=SOON) as server,
        server.connect(HEAD) as client,
        client.trickle(b"X-A: b\r\n"),
    ):
        assert (await client.rest()).startswith(b"HTTP/1.1 408 ")


async def test_the_second_request_of_a_connection_has_its_time_too() -> None:
    async with served(header_timeout=SOON) as server, server.connect(HEAD + b"\r\n") as client:
        assert (await client.answer())[2] == b"xx"
        await client.send(HEAD)
        assert "headers" in await client.problem(408)


async def test_a_connection_without_a_next_request_ends(caplog: pytest.LogCaptureFixture) -> None:
    with quiet(caplog):
        async with served(keep_alive=SOON) as server, server.connect(HEAD + b"\r\n") as client:
            assert (await client.answer())[2] == b"xx"
            assert await client.rest() == b""


@pytest.mark.parametrize(
    "framing", [b"Content-Length: 100\r\n\r\nabc", b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n"]
)
async def test_a_body_that_does_not_come_is_a_408(framing: bytes, caplog: pytest.LogCaptureFixture) -> None:
    with quiet(caplog):
        async with served(body_timeout=SOON) as server, server.connect(POST + framing) as client:
            assert "the body did not come within 0.2 s" in await client.problem(408)
            assert server.seen == ["begun"]


async def test_a_byte_now_and_then_gives_a_body_no_more_time() -> None:
    async with (
        served(body_timeout=SOON) as server,
        server.connect(POST + b"Content-Length: 100000\r\n\r\n") as client,
        client.trickle(b"x"),
    ):
        assert (await client.answer())[0] == 408


async def test_a_body_that_goes_on_after_the_answer_ends(caplog: pytest.LogCaptureFixture) -> None:
    sent = b"POST /early HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000000\r\n\r\n"
    with quiet(caplog):
        async with served(header_timeout=SOON) as server, server.connect(sent) as client:
            assert (await client.answer())[0] == 413
            async with client.trickle(b"x"):
                assert await client.rest() == b""


@pytest.mark.parametrize("path", ["/size/50000000", "/endless"])
async def test_an_answer_that_nobody_reads_ends(path: str, caplog: pytest.LogCaptureFixture) -> None:
    """The client sees its connection reset, and the application that its reader is gone."""
    with quiet(caplog):
        async with served(write_timeout=SOON, keep_alive=SOON) as server:
            with socket.create_connection(("127.0.0.1", server.port)) as client:
                client.sendall(f"GET {path} HTTP/1.1\r\nHost: a\r\n\r\n".encode())
                await until(lambda: _closed(server))
                assert server.seen[-1] in ("size", "ended")


async def _closed(server: Served) -> bool:
    assert server.part.server is not None
    return bool(server.seen) and not server.part.server.server_state.connections


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"nonsense\r\n\r\n", 400),
        (b"GET /\x00 HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nX\x01: b\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nX : b\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"x" * 65_536, 431),
        (POST + b"Content-Length: x\r\n\r\n", 400),
        (POST + b"Content-Length: -1\r\n\r\n", 400),
        (POST + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\nab", 400),
        (POST + b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (POST + b"Transfer-Encoding: gzip\r\n\r\n", 400),
        (POST + b"Transfer-Encoding: chunked\r\n\r\nnonsense\r\n", 400),
        (POST + b"Transfer-Encoding: chunked\r\n\r\n1\r\nab\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" * 40, 400),  # TLS
    ],
)
async def test_what_is_no_http_is_a_problem(
    sent: bytes, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    with quiet(caplog):
        async with served() as server, server.connect(sent) as client:
            assert await client.problem(status)


async def test_an_upload_that_breaks_off_is_no_error(caplog: pytest.LogCaptureFixture) -> None:
    with quiet(caplog):
        async with served() as server:
            async with server.connect(POST + b"Content-Length: 100\r\n\r\nabc"):
                await until(lambda: _seen(server, "begun"))
            await until(lambda: _closed(server))
            assert server.seen == ["begun"]


async def _seen(server: Served, what: str) -> bool:
    return what in server.seen


async def test_requests_in_a_row_are_answered_in_order() -> None:
    second = POST + b"Content-Length: 3\r\n\r\nabc"
    async with served() as server, server.connect(HEAD + b"\r\n" + second + HEAD + b"\r\n") as client:
        assert [(await client.answer())[2] for _ in range(3)] == [b"xx", b"abc", b"xx"]


@pytest.mark.parametrize("upgrade", [b"websocket", b"h2c"])
async def test_an_upgrade_is_not_taken(upgrade: bytes) -> None:
    sent = HEAD + b"Connection: Upgrade\r\nUpgrade: " + upgrade + b"\r\nSec-WebSocket-Key: a\r\n\r\n"
    async with served() as server, server.connect(sent) as client:
        assert (await client.answer())[0] == 200


async def test_http_1_0_is_answered_and_closed() -> None:
    async with served() as server, server.connect(b"GET /size/2 HTTP/1.0\r\n\r\n") as client:
        assert (await client.rest()).endswith(b"\r\n\r\nxx")


async def test_many_connections_of_one_address_leave_room_for_another() -> None:
    """Those that wait for a request give way; those that are served do not."""
    async with served(connections=20, connections_per_address=10) as server:
        busy = b"GET /wait HTTP/1.1\r\nHost: a\r\n\r\n"
        clients = [server.connect(busy) for _ in range(10)]
        for client in clients:
            await client.__aenter__()
        await until(lambda: _count(server, "waits", 10))
        async with server.connect() as refused:
            assert "too many connections" in await refused.problem(503)
        async with server.connect(HEAD + b"\r\n", source="127.0.0.2") as other:
            assert (await other.answer())[0] == 200
        for client in clients:
            await client.__aexit__(None, None, None)


async def _count(server: Served, what: str, number: int) -> bool:
    return server.seen.count(what) >= number


async def test_a_new_connection_takes_the_place_of_the_one_that_waits_longest() -> None:
    async with (
        served(connections=3, connections_per_address=2) as server,
        server.connect(HEAD) as first,
        server.connect(HEAD + b"\r\n") as second,
    ):
        assert (await second.answer())[0] == 200
        async with server.connect(HEAD + b"\r\n") as third:
            assert (await third.answer())[0] == 200
            assert await first.rest() == b""
            async with (
                server.connect(HEAD + b"\r\n", source="127.0.0.2") as fourth,
                server.connect(HEAD + b"\r\n", source="127.0.0.3") as fifth,
            ):
                assert [(await each.answer())[0] for each in (fourth, fifth)] == [200, 200]
                assert await second.rest() == b""  # of the address that has the most


async def test_a_proxy_may_hold_more_connections_than_one_address() -> None:
    async with (
        served(proxies=["127.0.0.0/30", "::1"], connections=3, connections_per_address=1) as server,
        server.connect(HEAD + b"\r\n") as first,
        server.connect(HEAD + b"\r\n") as second,
    ):
        for each in (first, second, first):
            assert (await each.answer())[0] == 200
            await each.send(HEAD + b"\r\n")


async def test_a_stop_does_not_wait_for_slow_clients(caplog: pytest.LogCaptureFixture) -> None:
    """Requests that run have their moment; what only waits for a client is ended."""
    with quiet(caplog):
        async with served() as server, server.connect(HEAD) as half, server.connect(HEAD + b"\r\n") as idle:
            assert (await idle.answer())[0] == 200
            server.task.cancel()
            assert await half.rest() == b""
            assert await idle.rest() == b""
            await asyncio.gather(server.task, return_exceptions=True)
            with pytest.raises(ConnectionRefusedError):
                async with server.connect():
                    pass


BODIES = {
    "/api/v1/channels/orders/events": ("POST", "application/json", b'{"data": '),
    "/api/v1/channels/orders/events/batch": ("POST", "application/json", b'{"events": ['),
    "/api/v1/channels/orders/events/stream": ("POST", "application/x-ndjson", b'{"data": 1}\n{"data":'),
    "/api/v1/channels/orders/consumers/a/poll": ("POST", "application/json", b"{"),
    "/api/v1/channels/orders": ("PUT", "application/json", b"{"),
    "/login": ("POST", "application/x-www-form-urlencoded", b"token=a"),
    "/deadletters/do": ("POST", "multipart/form-data; boundary=a", b"--a\r\nContent-Disposition: form-data"),
}


@pytest.mark.parametrize("how", ["slow", "broken", "no chunk"])
async def test_no_route_answers_a_bad_upload_with_an_error_of_its_own(
    bus: holdfast.Bus, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    limits = {"body_timeout": SOON}
    issued = await Tokens(bus, "gbe").create(scope_of("admin", None, None))
    with quiet(caplog):
        async with running(bus, server={"open": False, "limits": limits}) as system:
            [http] = [
                each.service for each in system.supervisor.services if isinstance(each.service, HttpService)
            ]
            port = int(http.url.rpartition(":")[2])
            server = Served(http, port, asyncio.create_task(asyncio.sleep(0)))
            for path, (method, kind, begun) in BODIES.items():
                sent = [
                    f"{method} {path} HTTP/1.1",
                    f"Host: 127.0.0.1:{port}",
                    f"Origin: {http.url}",
                    f"Authorization: Bearer {issued.text}",
                    f"Content-Type: {kind}",
                    "Transfer-Encoding: chunked" if how == "no chunk" else "Content-Length: 1000",
                ]
                body = b"nonsense\r\n" if how == "no chunk" else begun
                async with server.connect("\r\n".join(sent).encode() + b"\r\n\r\n" + body) as client:
                    if how == "broken":
                        continue
                    status = int((await client.until(b"\r\n")).split()[1])
                    assert status in ((408, 303, 401, 403) if how == "slow" else (400, 303, 401, 403)), path
            assert (await system.client.get("/healthz")).status_code == 200


async def test_half_requests_beyond_the_descriptors_stop_nothing(
    python: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    """They waited for ever; the accept then failed 2,048 times a second, with a traceback each."""
    process = python("-c", UNDER_200_DESCRIPTORS, "serve", "--port", "0", "--json")
    assert process.stdout is not None
    lines = (json.loads(line) for line in process.stdout)
    url = next(each["status"] for each in lines if (each["part"], each["phase"]) == ("http", "running"))
    port = int(url.rpartition(":")[2])
    half = [socket.create_connection(("127.0.0.1", port)) for _ in range(260)]
    for each in half:
        each.sendall(b"GET / HTTP/1.1\r\nHost: a\r\nX: ")
    async with httpx.AsyncClient(base_url=url, timeout=30) as client:
        for _ in range(3):
            assert (await client.get("/healthz", headers={"Connection": "close"})).status_code == 200
    assert (tmp_path / "stderr").stat().st_size < 20_000
    for each in half:
        each.close()


def test_one_line_a_minute_is_told_of_what_strangers_cause() -> None:
    now = 0.0
    seldom = OncePerMinute(lambda: now)

    def told(text: str, level: int = logging.WARNING) -> str | None:
        record = logging.LogRecord("a", level, "b", 1, text, ("c",), None)
        return record.getMessage() if seldom.filter(record) else None

    assert [told("one %s"), told("one %s"), told("two %s"), told("one %s")] == ["one c", None, "two c", None]
    assert [told("three %s", logging.ERROR) for _ in range(2)] == ["three c"] * 2
    now = 61.0
    assert told("one %s") == "one c (2 more since the last line)"
    assert told("one %s") is None


@pytest.mark.parametrize(
    ("peer", "address"),
    [
        (("10.0.0.1", 1), "10.0.0.1"),
        (("::ffff:10.0.0.1", 1, 0, 0), "10.0.0.1"),
        (("2001:db8:1:2:3:4:5:6", 1, 0, 0), "2001:db8:1:2::/64"),
        (("fe80::1%eth0", 1, 0, 2), "fe80::/64"),
        ("", ""),
    ],
)
def test_the_address_that_a_peer_counts_as(peer: Any, address: str) -> None:
    assert peer_address(peer) == address
