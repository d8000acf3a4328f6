"""The archive store of a run: a folder, or a real S3 behind a proxy that misbehaves on demand."""

from __future__ import annotations

import http.client
import sys
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any, Literal

from holdfast.embedded import S3

if TYPE_CHECKING:  # the pipeline may not be installed
    from holdfast.pipeline.stores import ObjectStore

_BUCKET = "chaos"
RequestFault = Literal["409", "500", "503", "lost", "late", "cut", "none"]
"""The numbers are answered, and nothing is done. `lost`: the server applies the request, and its answer is
lost with the connection. `late`: the same, but the client hears nothing until it gives up. `cut`: the answer
ends halfway. `none`: all is well.
"""


class FaultyS3(ThreadingHTTPServer):
    """Passes requests on to a real server, with their signatures intact; a connection for each."""

    daemon_threads = True

    def __init__(self, port: int) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.target = port
        self.script = deque[RequestFault]()
        """What the next requests meet; extend it at any time."""
        self.seen = list[str]()
        """Each request's method and the fault that it met."""

    @property
    def endpoint(self) -> str:
        """For AWS_ENDPOINT_URL."""
        return f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print a traceback, but not of a connection that ended: clients are killed, and so is the server."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    server: FaultyS3

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
def faulty_s3(port: int) -> Iterator[FaultyS3]:
    """A proxy for the S3 at that port of this machine."""
    with FaultyS3(port) as proxy:
        Thread(target=proxy.serve_forever, daemon=True).start()
        yield proxy
        proxy.shutdown()


@dataclass(frozen=True, slots=True)
class ArchiveStore:
    """Where an archiver writes, and where the checks read what it wrote."""

    url: str
    environment: dict[str, str] = field(default_factory=dict)
    """For the archiver's process."""
    proxy: FaultyS3 | None = None
    direct: str | None = None
    """The endpoint without the proxy, for the checks."""

    def opened(self) -> ObjectStore:
        """The store without the faults, for the checks."""
        from holdfast.pipeline.stores import open_store
        from holdfast.pipeline.stores.s3 import S3Store

        if self.direct is None:
            return open_store(self.url)
        return S3Store(_BUCKET, "", self.environment | {"AWS_ENDPOINT_URL": self.direct})


@contextmanager
def archive_store(folder: Path, *, s3: bool) -> Iterator[ArchiveStore]:
    """In a folder, or on an S3 of its own."""
    if not s3:
        yield ArchiveStore(str(folder))
        return
    with ExitStack() as stack:
        server = stack.enter_context(S3())
        proxy = stack.enter_context(faulty_s3(server.port))
        environment = {
            "AWS_ACCESS_KEY_ID": server.access_key,
            "AWS_SECRET_ACCESS_KEY": server.secret_key,
            "AWS_REGION": server.region,
            "AWS_ENDPOINT_URL": proxy.endpoint,
        }
        store = ArchiveStore(f"s3://{_BUCKET}", environment, proxy, server.endpoint)
        store.opened().put("founded", b"")  # a bucket comes into being with its first object
        yield store
