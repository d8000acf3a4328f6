"""HTTP as a part: uvicorn inside this process's event loop, on a socket that is bound beforehand."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
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
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except (OSError, OverflowError) as error:
        raise InvalidInput(
            f"cannot listen on {host} port {port}: {error}; choose another --host or --port, or use --no-http"
        ) from None


class HttpPart:
    """Serves an application until cancelled; requests that run get a moment to finish."""

    name = "http"

    def __init__(self, app: FastAPI, bound: socket.socket) -> None:
        self._app, self._bound = app, bound
        host, port = bound.getsockname()[:2]
        self.server: uvicorn.Server | None = None
        self.url = f"http://{f'[{host}]' if ':' in host else host}:{port}"

    async def run(self) -> None:
        """Serve."""
        config = uvicorn.Config(
            self._app,
            log_config=None,
            log_level="warning",
            access_log=False,
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
        """Nothing of its own."""
        yield from ()
