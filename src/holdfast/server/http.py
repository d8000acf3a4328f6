"""HTTP as a part: uvicorn inside this process's event loop, on a socket that is bound beforehand."""

from __future__ import annotations

import asyncio
import logging
import math
import socket
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

import uvicorn
from fastapi import FastAPI
from prometheus_client.core import Metric
from uvicorn.protocols.http.h11_impl import H11Protocol

from holdfast.config.server import Limits
from holdfast.model.errors import InvalidInput
from holdfast.server.connections import Connection, Connections, address_of, in_bytes
from holdfast.server.loglines import OncePerMinute
from holdfast.server.problems import answer

log = logging.getLogger(__name__)
log.addFilter(OncePerMinute())
_uvicorn_lines = OncePerMinute()

_GRACE = 5
_BACKLOG = 2048
_PAUSE = 1.0


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
        # Every connection takes it over. Without it an answer waits some 40 ms for the caller's system to
        # acknowledge its first packet: asyncio sees to that only for sockets that name their protocol.
        bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return bound
    except (OSError, OverflowError) as error:
        raise InvalidInput(
            f"cannot listen on {host} port {port}: {error}; choose another --host or --port, or use --no-http"
        ) from None


class HttpPart:
    """Serves an application until cancelled; requests that run get a moment to finish."""

    name = "http"

    def __init__(
        self,
        app: FastAPI,
        bound: socket.socket,
        welcome: Callable[[], Awaitable[None]] | None = None,
        limits: Limits | None = None,
        proxies: Sequence[str] = (),
    ) -> None:
        self._app, self._bound, self._welcome = app, bound, welcome
        self._limits, self._proxies = limits or Limits(), proxies
        host, port = bound.getsockname()[:2]
        self.server: uvicorn.Server | None = None
        self.url = f"http://{f'[{host}]' if ':' in host else host}:{port}"

    async def run(self) -> None:
        """Serve."""
        if self._welcome is not None:
            await self._welcome()
        logging.getLogger("uvicorn.error").addFilter(_uvicorn_lines)
        known, config = Connections(self._limits, self._proxies), self._config()
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
                self._bound.close()  # who knocks from now on is refused, and does not wait
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
            h11_max_incomplete_event_size=2 * self._limits.headers,  # with what stands between them
        )
        config.load()
        return config

    async def _accept(self, server: uvicorn.Server, known: Connections) -> None:
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
            await self._take(accepted, address_of(peer), server, known)

    async def _take(
        self, accepted: socket.socket, address: str, server: uvicorn.Server, known: Connections
    ) -> None:
        if not known.make_room(address):
            log.warning("too many requests at once: a connection is refused, the last time from %s", address)
            _refuse(accepted)
            return
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: Connection(server.config, server.server_state, known, address), accepted
            )
        except OSError:  # it has gone already
            accepted.close()

    def status(self) -> str:
        """Where it listens."""
        return self.url

    def metrics(self) -> Iterator[Metric]:
        """What it was asked."""
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
    """Say that there is no room, as far as it can be said at once."""
    told = answer(503, "too many connections; close some, or come again later")
    with accepted, suppress(OSError):
        accepted.setblocking(False)
        with suppress(BlockingIOError):
            accepted.recv(65536)  # what is left unread would take the answer with it
        accepted.send(in_bytes(told))
