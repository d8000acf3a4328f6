"""HTTP as a service: uvicorn inside this process's event loop, on a socket that is bound beforehand.

The number of connections is limited, and how long each may wait; uvicorn reads and writes the HTTP on them.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import math
import resource
import socket
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from http import HTTPStatus
from typing import Any

import h11
import uvicorn
from fastapi import FastAPI
from prometheus_client.core import Metric
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from holdfast.config.config import ServerLimits
from holdfast.model.errors import InvalidInput
from holdfast.server.limits import OncePerMinute
from holdfast.server.middleware import ALWAYS
from holdfast.server.problems import problem_response

log = logging.getLogger(__name__)
log.addFilter(OncePerMinute())
_uvicorn_lines = OncePerMinute()

CLOSE = {"Connection": "close"}
_SHOWN = 200
_LINGER = 2.0
_GRACE = 5
_BACKLOG = 2048
_PAUSE = 1.0


class HttpConnections:
    """All connections. One too many takes the place of the one that has waited longest for a request."""

    def __init__(self, limits: ServerLimits, proxies: Iterable[str] = ()) -> None:
        self.limits = limits
        self._proxies = [ipaddress.ip_network(each, strict=False) for each in proxies]
        descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        room = limits.connections if descriptors == resource.RLIM_INFINITY else descriptors // 2
        self._most = min(limits.connections, room)
        self._open: set[HttpConnection] = set()
        self._addresses: Counter[str] = Counter()

    def add(self, connection: HttpConnection) -> None:
        """Add one that has begun."""
        self._open.add(connection)
        self._addresses[connection.address] += 1

    def remove(self, connection: HttpConnection) -> None:
        """Remove one that has ended."""
        if connection in self._open:
            self._open.remove(connection)
            self._addresses[connection.address] -= 1
            if not self._addresses[connection.address]:
                del self._addresses[connection.address]

    def make_room(self, address: str) -> bool:
        """Whether one more from an address can be served; another one may be closed for it."""
        if self._addresses[address] >= self.limits.connections_per_address and not self._is_proxy(address):
            return self.replace(lambda each: each.address == address)
        return len(self._open) < self._most or self.replace()

    def _is_proxy(self, address: str) -> bool:
        """Whether it may be the address of many callers."""
        return bool(address) and any(ipaddress.ip_network(address).overlaps(each) for each in self._proxies)

    def replace(self, which: Callable[[HttpConnection], bool] = lambda each: True) -> bool:
        """End the one that waited longest, of the address with the most. Returns whether there was one."""
        waiting = [each for each in self._open if each.waiting and which(each)]
        if not waiting:
            return False
        victim = min(waiting, key=lambda each: (-self._addresses[each.address], each.since))
        log.warning("too many connections: the longest idle one, of %s, is closed", victim.address)
        self.remove(victim)
        victim.end()
        return True

    def abort(self) -> None:
        """End all that are left."""
        for each in list(self._open):
            each.transport.abort()


class HttpConnection(H11Protocol):
    """One connection. It ends when its client is too slow: with headers, a body, a request, or reading."""

    def __init__(
        self, config: uvicorn.Config, state: ServerState, known: HttpConnections, address: str
    ) -> None:
        super().__init__(config, state, {})
        self._known, self._limits, self.address = known, known.limits, address
        self._inner: Callable[..., Awaitable[None]] = self.app
        self.app = self._serve
        self.since = self.loop.time()
        self._requests = 0
        self._partial = False  # a part of the next request has come
        self._responding = self._refused = False
        self._lost = asyncio.Event()
        self._waits: asyncio.TimerHandle | None = None
        self._writes: asyncio.TimerHandle | None = None

    @property
    def waiting(self) -> bool:
        """Whether no request is being served on it."""
        return not self._requests

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin: the headers of the first request must come in time."""
        super().connection_made(transport)
        self._known.add(self)
        self._wait(self._limits.header_timeout.total_seconds())

    def connection_lost(self, exc: Exception | None) -> None:
        """End."""
        self._known.remove(self)
        self._lost.set()
        for timer in (self._waits, self._writes):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse; from its first byte on a request has so much time for its headers."""
        if self._refused:
            return
        if self.waiting and not self._partial:
            self._partial = True
            if self.cycle is not None:  # else the time runs since the connection was made
                self._wait(self._limits.header_timeout.total_seconds())
        before = self.cycle
        super().data_received(data)
        if self.cycle is not before:
            self._stop_waiting()

    def eof_received(self) -> None:
        """The client has nothing more to send; it may still be slow to read."""
        super().eof_received()
        self._wait(self._limits.write_timeout.total_seconds())

    def pause_writing(self) -> None:
        """More is to be sent than the client takes: it has so much time to go on reading."""
        super().pause_writing()
        if self._writes is None:
            self._writes = self.loop.call_later(self._limits.write_timeout.total_seconds(), self._unread)

    def resume_writing(self) -> None:
        """It has read enough of it."""
        super().resume_writing()
        if self._writes is not None:
            self._writes.cancel()
            self._writes = None

    def send_400_response(self, msg: str) -> None:
        """Respond with a problem to what the parser cannot read; called while its error is handled."""
        error = sys.exception()
        if isinstance(error, h11.RemoteProtocolError) and error.error_status_hint == 431:
            self._refuse(431, f"the headers are over the limit of {self._limits.headers} bytes; send less")
        else:  # also where h11 would have a 501: an unknown Transfer-Encoding is the client's fault
            self._refuse(400, f"this is no valid HTTP request: {str(error or msg)[:_SHOWN]}")

    def end(self) -> None:
        """End it at once; what the client has not read yet is lost."""
        if self.transport.get_write_buffer_size():
            self.transport.abort()
        else:
            self.transport.close()

    def _wait(self, seconds: float) -> None:
        """Wait so long for the client."""
        self.since = self.loop.time()
        if self._waits is not None:
            self._waits.cancel()
        self._waits = self.loop.call_later(seconds, self._late)

    def _stop_waiting(self) -> None:
        """A request is there."""
        if self._waits is not None and not self._refused:
            self._waits.cancel()

    def _late(self) -> None:
        if not self._partial or self.conn.their_state is not h11.IDLE or self.transport.is_closing():
            self.end()
            return
        log.warning("a request's headers did not come in time, the last time from %s", self.address)
        seconds = self._limits.header_timeout.total_seconds()
        self._refuse(408, f"the headers did not come within {seconds:g} s; send the request again, faster")

    def _unread(self) -> None:
        log.warning("an answer was not read in time, the last time by %s", self.address)
        self.transport.abort()

    def _refuse(self, status: int, detail: str) -> None:
        """Respond on behalf of the application, unless its own response has begun, and end.

        What the client still sends is read for a moment: left unread, it would take the response with it.
        """
        if self._responding:
            self.transport.abort()  # half a response must not look whole
            return
        self._refused = True
        self.transport.write(wire_bytes(problem_response(status, detail), self.server_state.default_headers))
        self.transport.write_eof()
        self.flow.resume_reading()
        self._wait(min(self._limits.write_timeout.total_seconds(), _LINGER))

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The application, as uvicorn calls it for each request."""
        self._requests += 1
        self._partial = self._responding = False
        self._stop_waiting()

        async def forward(message: Message) -> None:
            if not self._refused:
                self._responding = True
                await send(message)

        try:
            await self._checked(scope, self._timed(receive), forward)
        except asyncio.CancelledError:  # the server stops, and its grace is over
            self._refused = True
            self.transport.abort()
        finally:
            self._requests -= 1
            self._responded()
        if self._refused:
            await self._lost.wait()  # or uvicorn would report that there was no response

    def _responded(self) -> None:
        """Wait for the next request, or for the client to read the rest of the last response."""
        if self.waiting and not (self._refused or self._lost.is_set()):
            self._responding = False
            limits, closing = self._limits, self.transport.is_closing()
            self._wait((limits.write_timeout if closing else limits.keep_alive).total_seconds())

    async def _checked(self, scope: Scope, receive: Receive, send: Send) -> None:
        names = {name for name, _ in scope.get("headers", ())}
        if {b"content-length", b"transfer-encoding"} <= names:  # two lengths: proxies may take the other one
            self._refuse(400, "Content-Length and Transfer-Encoding stand together; send one of them")
        if not self._refused:
            await self._inner(scope, receive, send)

    def _timed(self, receive: Receive) -> Receive:
        """Wait for the whole body no longer than the limit. After it, wait for the client to leave."""
        left, more = self._limits.body_timeout.total_seconds(), True

        async def timed() -> Message:
            nonlocal left, more
            if self._refused:
                return {"type": "http.disconnect"}
            if not more:
                return await receive()
            began = self.loop.time()
            try:
                async with asyncio.timeout(left):
                    message = await receive()
            except TimeoutError:
                return self._body_late()
            left -= self.loop.time() - began
            more = message.get("more_body", False)
            return message

        return timed

    def _body_late(self) -> Message:
        log.warning("a request's body did not come in time, the last time from %s", self.address)
        if self._responding:
            self.transport.abort()
            return {"type": "http.disconnect"}
        seconds = self._limits.body_timeout.total_seconds()
        # In this form the framework lets it pass, whoever is reading the body.
        raise HTTPException(408, f"the body did not come within {seconds:g} s; send less, or faster", CLOSE)


def wire_bytes(response: Response, more: list[tuple[bytes, bytes]] | None = None) -> bytes:
    """A response as it stands on the wire, after which the connection ends."""
    status = HTTPStatus(response.status_code)
    headers = [*response.raw_headers, *ALWAYS, *(more or ()), (b"connection", b"close")]
    lines = [f"HTTP/1.1 {status.value} {status.phrase}".encode(), *(b": ".join(each) for each in headers)]
    return b"\r\n".join([*lines, b"", bytes(response.body)])


def peer_address(peer: Any) -> str:
    """The address that a peer counts as: mapped IPv4 as IPv4, IPv6 as the /64 that one customer has."""
    try:
        found = ipaddress.ip_address(peer[0].partition("%")[0])
    except (ValueError, IndexError, TypeError):
        return ""
    if isinstance(found, ipaddress.IPv6Address):
        if found.ipv4_mapped is None:
            return str(ipaddress.ip_network((int(found), 64), strict=False))
        found = found.ipv4_mapped
    return str(found)


class _Server(uvicorn.Server):
    """Leaves the signals to the supervisor."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def listen(host: str, port: int) -> socket.socket:
    """A socket that is bound and listens; port 0 takes a free one."""
    if not host.strip():  # a shell's variable that is not set: it must not mean every address
        raise InvalidInput("the host is empty; name an address, such as 127.0.0.1, or 0.0.0.0 for all")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        bound = socket.create_server((host, port), family=family, backlog=_BACKLOG)
        # Every connection takes it over. Without it a response waits some 40 ms for the caller's system to
        # acknowledge its first packet: asyncio sees to that only for sockets that name their protocol.
        bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return bound
    except (OSError, OverflowError) as error:
        raise InvalidInput(
            f"cannot listen on {host} port {port}: {error}; choose another --host or --port, or use --no-http"
        ) from None


class HttpService:
    """Serves an application until cancelled; requests that run get a moment to finish."""

    name = "http"

    def __init__(
        self,
        app: FastAPI,
        bound: socket.socket,
        on_start: Callable[[], Awaitable[None]] | None = None,
        limits: ServerLimits | None = None,
        proxies: Sequence[str] = (),
    ) -> None:
        self._app, self._bound, self._on_start = app, bound, on_start
        self._limits, self._proxies = limits or ServerLimits(), proxies
        host, port = bound.getsockname()[:2]
        self.server: uvicorn.Server | None = None
        self.url = f"http://{f'[{host}]' if ':' in host else host}:{port}"

    async def run(self) -> None:
        """Serve until cancelled."""
        if self._on_start is not None:
            await self._on_start()
        logging.getLogger("uvicorn.error").addFilter(_uvicorn_lines)
        known, config = HttpConnections(self._limits, self._proxies), self._config()
        self.server = server = _Server(config)
        serving = asyncio.create_task(server.serve(sockets=[]))  # it gets its connections from us
        accepting = asyncio.create_task(self._accept(server, known))
        stopping = True
        try:
            await asyncio.wait((serving, accepting), return_when=asyncio.FIRST_COMPLETED)
            stopping = False
        finally:
            accepting.cancel()
            [failed] = await asyncio.gather(accepting, return_exceptions=True)
            if stopping:
                self._bound.close()  # who connects from now on is refused, and does not wait
            server.should_exit = True
            await serving
            known.abort()
        if isinstance(failed, Exception):
            raise failed

    def _config(self) -> uvicorn.Config:
        config = uvicorn.Config(
            self._app,
            http=H11Protocol,
            ws="none",
            log_config=None,
            log_level="warning",
            access_log=False,
            proxy_headers=False,
            server_header=False,
            lifespan="off",
            timeout_graceful_shutdown=_GRACE,
            timeout_keep_alive=math.ceil(self._limits.keep_alive.total_seconds()) + 1,  # ours comes first
            h11_max_incomplete_event_size=2 * self._limits.headers,  # with what is between them
        )
        config.load()
        return config

    async def _accept(self, server: uvicorn.Server, known: HttpConnections) -> None:
        """Take connections until cancelled. asyncio's own loop tries again at once, 2,048 times, and reports
        each time, where no descriptor is left."""
        self._bound.setblocking(False)
        while True:
            await _readable(self._bound)
            try:
                accepted, peer = self._bound.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                continue
            except OSError as error:
                log.warning("no connection can be accepted: %s", error)
                await asyncio.sleep(0 if known.replace() else _PAUSE)
                continue
            await self._take(accepted, peer_address(peer), server, known)

    async def _take(
        self, accepted: socket.socket, address: str, server: uvicorn.Server, known: HttpConnections
    ) -> None:
        if not known.make_room(address):
            log.warning("too many requests at once: a connection is refused, the last time from %s", address)
            _refuse(accepted)
            return
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: HttpConnection(server.config, server.server_state, known, address), accepted
            )
        except OSError:  # it has gone already
            accepted.close()

    def status(self) -> str:
        """Where it listens."""
        return self.url

    def metrics(self) -> Iterator[Metric]:
        """The requests so far."""
        yield from self._app.state.requests.metrics()


async def _readable(bound: socket.socket) -> None:
    """Wait for somebody who connects."""
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(bound, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(bound)


def _refuse(accepted: socket.socket) -> None:
    """Respond that there is no room, as far as that can be sent at once."""
    response = problem_response(503, "too many connections; close some, or come again later")
    with accepted, suppress(OSError):
        accepted.setblocking(False)
        with suppress(BlockingIOError):
            accepted.recv(65536)  # what is left unread would take the response with it
        accepted.send(wire_bytes(response))
