"""Connections: who may hold one, and how long it may wait. uvicorn reads and writes the HTTP on it."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import resource
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from http import HTTPStatus
from typing import Any

import h11
import uvicorn
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from holdfast.config.server import Limits
from holdfast.server.limits import ALWAYS
from holdfast.server.loglines import OncePerMinute
from holdfast.server.problems import answer

log = logging.getLogger(__name__)

_SHOWN = 200
_LINGER = 2.0


log.addFilter(OncePerMinute())


class Connections:
    """All connections. One too many takes the place of the one that has waited longest for a request."""

    def __init__(self, limits: Limits, proxies: Iterable[str] = ()) -> None:
        self.limits = limits
        self._proxies = [ipaddress.ip_network(each, strict=False) for each in proxies]
        descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        room = limits.connections if descriptors == resource.RLIM_INFINITY else descriptors // 2
        self._most = min(limits.connections, room)
        self._open: set[Connection] = set()
        self._addresses: Counter[str] = Counter()

    def add(self, connection: Connection) -> None:
        """One that has begun."""
        self._open.add(connection)
        self._addresses[connection.address] += 1

    def remove(self, connection: Connection) -> None:
        """One that has ended."""
        if connection in self._open:
            self._open.remove(connection)
            self._addresses[connection.address] -= 1
            if not self._addresses[connection.address]:
                del self._addresses[connection.address]

    def make_room(self, address: str) -> bool:
        """Whether one more from an address can be served."""
        if self._addresses[address] >= self.limits.connections_per_address and not self._is_proxy(address):
            return self.replace(lambda each: each.address == address)
        return len(self._open) < self._most or self.replace()

    def _is_proxy(self, address: str) -> bool:
        """Whether it may be the address of many callers."""
        return bool(address) and any(ipaddress.ip_network(address).overlaps(each) for each in self._proxies)

    def replace(self, which: Callable[[Connection], bool] = lambda each: True) -> bool:
        """End the one that has waited longest, of the address that has the most; whether there was one."""
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


class Connection(H11Protocol):
    """One connection. It ends when its client is too slow: with headers, a body, a request, or reading."""

    def __init__(self, config: uvicorn.Config, state: ServerState, known: Connections, address: str) -> None:
        super().__init__(config, state, {})
        self._known, self._limits, self.address = known, known.limits, address
        self._inner: Callable[..., Awaitable[None]] = self.app
        self.app = self._serve
        self.since = self.loop.time()
        self._requests = 0
        self._partial = False  # a part of the next request has come
        self._answering = self._refused = False
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
        """Answer what the parser cannot read with a problem; called while the parser's error is handled."""
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
        """Answer on behalf of the application, unless its own answer has begun, and end.

        What the client still sends is read for a moment: left unread, it would take the answer with it.
        """
        if self._answering:
            self.transport.abort()  # half an answer must not look whole
            return
        self._refused = True
        self.transport.write(in_bytes(answer(status, detail), self.server_state.default_headers))
        self.transport.write_eof()
        self.flow.resume_reading()
        self._wait(min(self._limits.write_timeout.total_seconds(), _LINGER))

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The application, as uvicorn calls it for each request."""
        self._requests += 1
        self._partial = self._answering = False
        self._stop_waiting()

        async def forward(message: Message) -> None:
            if not self._refused:
                self._answering = True
                await send(message)

        try:
            await self._checked(scope, self._timed(receive), forward)
        except asyncio.CancelledError:  # the server stops, and its grace is over
            self._refused = True
            self.transport.abort()
        finally:
            self._requests -= 1
            self._answered()
        if self._refused:
            await self._lost.wait()  # or uvicorn would report that there was no answer

    def _answered(self) -> None:
        """Wait for the next request, or for the client to read the rest of the last answer."""
        if self.waiting and not (self._refused or self._lost.is_set()):
            self._answering = False
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
        if self._answering:
            self.transport.abort()
            return {"type": "http.disconnect"}
        seconds = self._limits.body_timeout.total_seconds()
        # In this form the framework lets it pass, whoever is reading the body.
        raise HTTPException(408, f"the body did not come within {seconds:g} s; send less, or faster", CLOSE)


CLOSE = {"Connection": "close"}


def in_bytes(told: Response, more: list[tuple[bytes, bytes]] | None = None) -> bytes:
    """An answer as it stands on the wire, after which the connection ends."""
    status = HTTPStatus(told.status_code)
    headers = [*told.raw_headers, *ALWAYS, *(more or ()), (b"connection", b"close")]
    lines = [f"HTTP/1.1 {status.value} {status.phrase}".encode(), *(b": ".join(each) for each in headers)]
    return b"\r\n".join([*lines, b"", bytes(told.body)])


def address_of(peer: Any) -> str:
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
