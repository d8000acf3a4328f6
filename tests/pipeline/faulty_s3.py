"""A way to S3 that misbehaves on demand: each request may meet one fault of a script."""

from __future__ import annotations

import http.client
from collections import deque
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Literal

Fault = Literal["409", "503", "lost", "cut", "none"]
"""`lost`: the server applies the request, and its answer is lost. `cut`: the answer ends halfway."""


class FaultyWay(ThreadingHTTPServer):
    """Passes requests on to a real server, with their signatures intact; a connection for each."""

    def __init__(self, port: int) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.target, self.script, self.seen = port, deque[Fault](), list[str]()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    server: FaultyWay

    def _pass(self) -> None:
        fault = self.server.script.popleft() if self.server.script else "none"
        self.server.seen.append(f"{self.command} {fault}")
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if fault in ("409", "503"):
            self.send_response(int(fault))
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        with closing(http.client.HTTPConnection("127.0.0.1", self.server.target)) as onward:
            onward.request(self.command, self.path, body, dict(self.headers.items()))
            answer = onward.getresponse()
            content = answer.read()
        if fault == "lost":
            return
        self.send_response(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in ("content-length", "transfer-encoding", "connection", "date", "server"):
                self.send_header(name, value)
        length = answer.getheader("Content-Length") if self.command == "HEAD" else str(len(content))
        self.send_header("Content-Length", length or "0")
        self.end_headers()
        self.wfile.write(content[: len(content) // 2] if fault == "cut" else content)

    do_GET = do_PUT = do_HEAD = do_DELETE = do_POST = _pass  # noqa: N815

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@contextmanager
def faulty_way(port: int) -> Iterator[FaultyWay]:
    with FaultyWay(port) as way:
        Thread(target=way.serve_forever, daemon=True).start()
        yield way
        way.shutdown()
