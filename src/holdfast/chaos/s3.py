"""A way to S3 that misbehaves on demand: each request meets the next fault of a script."""

from __future__ import annotations

import http.client
from collections import deque
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Literal

Fault = Literal["409", "500", "503", "lost", "late", "cut", "none"]
"""The numbers are answered, and nothing is done. `lost`: the server applies the request, and its answer is
lost with the connection. `late`: the same, but the client hears nothing until it gives up. `cut`: the answer
ends halfway. `none`: all is well.
"""


class FaultyWay(ThreadingHTTPServer):
    """Passes requests on to a real server, with their signatures intact; a connection for each."""

    daemon_threads = True

    def __init__(self, port: int) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.target = port
        self.script = deque[Fault]()
        """What the next requests meet; extend it at any time."""
        self.seen = list[str]()
        """Each request's method and the fault that it met."""

    @property
    def endpoint(self) -> str:
        """For AWS_ENDPOINT_URL."""
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    server: FaultyWay

    def _pass(self) -> None:
        fault = self.server.script.popleft() if self.server.script else "none"
        self.server.seen.append(f"{self.command} {fault}")
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if fault.isdecimal():
            self.send_response(int(fault))
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        with closing(http.client.HTTPConnection("127.0.0.1", self.server.target)) as onward:
            onward.request(self.command, self.path, body, dict(self.headers.items()))
            answer = onward.getresponse()
            content = answer.read()
        if fault == "late":
            self.rfile.read(1)  # comes back when the client hangs up
        if fault in ("lost", "late"):
            return
        self.send_response(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in ("content-length", "transfer-encoding", "connection", "date", "server"):
                self.send_header(name, value)
        length = answer.getheader("Content-Length") if self.command == "HEAD" else str(len(content))
        self.send_header("Content-Length", length or "0")
        self.end_headers()
        self.wfile.write(content[: len(content) // 2] if fault == "cut" else content)

    do_GET = do_PUT = do_HEAD = do_DELETE = do_POST = _pass  # noqa: N815 - the server's names

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@contextmanager
def faulty_way(port: int) -> Iterator[FaultyWay]:
    """A way to the S3 at that port of this machine."""
    with FaultyWay(port) as way:
        Thread(target=way.serve_forever, daemon=True).start()
        yield way
        way.shutdown()
