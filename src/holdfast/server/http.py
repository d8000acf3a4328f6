"""HTTP as a part: uvicorn inside this process's event loop, on a socket that is bound beforehand."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

import uvicorn
from fastapi import FastAPI
from prometheus_client.core import Metric

from holdfast.model.errors import InvalidInput

_GRACE = 5


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
        bound = socket.create_server((host, port), family=family)
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
        self, app: FastAPI, bound: socket.socket, welcome: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        self._app, self._bound, self._welcome = app, bound, welcome
        host, port = bound.getsockname()[:2]
        self.server: uvicorn.Server | None = None
        self.url = f"http://{f'[{host}]' if ':' in host else host}:{port}"

    async def run(self) -> None:
        """Serve."""
        if self._welcome is not None:
            await self._welcome()
        config = uvicorn.Config(
            self._app,
            log_config=None,
            log_level="warning",
            access_log=False,
            proxy_headers=False,
            server_header=False,
            lifespan="off",
            timeout_graceful_shutdown=_GRACE,
        )
        self.server = server = _Server(config)
        # A copy: uvicorn closes what it is given, and the next start needs the socket again.
        serving = asyncio.create_task(server.serve(sockets=[self._bound.dup()]))
        try:
            await asyncio.shield(serving)
        except asyncio.CancelledError:
            self._bound.close()  # who knocks from now on is refused, and does not wait
            raise
        finally:
            server.should_exit = True
            await serving

    def status(self) -> str:
        """Where it listens."""
        return self.url

    def metrics(self) -> Iterator[Metric]:
        """What it was asked."""
        yield from self._app.state.requests.metrics()
