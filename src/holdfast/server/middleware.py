"""Middleware around the application: limits and time-outs, the refusal of other sites, request counts."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from urllib.parse import urlsplit

from prometheus_client import Counter
from prometheus_client.core import Metric
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from holdfast.config.config import ServerLimits
from holdfast.model.errors import HoldfastError, InvalidInput
from holdfast.server.catalog import REQUEST_SECONDS, REQUESTS, observed
from holdfast.server.errors import (
    CrossSite,
    HeadersTooLarge,
    PayloadTooLarge,
    Refusal,
    TimedOut,
    UnsupportedMediaType,
)
from holdfast.server.problems import problem
from holdfast.server.routes import path_of

log = logging.getLogger(__name__)

WAIT = "holdfast.wait"
"""In the scope: how a route that waits for something says for how long."""
ALWAYS = (
    (b"x-content-type-options", b"nosniff"),
    (b"cache-control", b"no-store"),
    (b"cross-origin-resource-policy", b"same-origin"),
)
"""Headers of every response, unless it has its own."""
_OWN_SITES = frozenset({"same-origin", "none"})
"""`none` is a person's own doing: an address that was typed, a bookmark."""
BUCKETS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30)
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
NONE, OTHER = "none", "other"


class Limiter:
    """Limits what one request may cost, and responds whatever happens."""

    def __init__(self, app: ASGIApp, limits: ServerLimits) -> None:
        self._app, self._limits = app, limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        await _Exchange(self._app, self._limits, scope, receive, send).run()


class _Exchange:
    """One request and its response."""

    def __init__(
        self, app: ASGIApp, limits: ServerLimits, scope: Scope, receive: Receive, send: Send
    ) -> None:
        self._app, self._limits = app, limits
        self._scope, self._receive, self._send = scope, receive, send
        self._headers = Headers(scope=scope)
        self._deadline: asyncio.Timeout | None = None
        self._begun = self._whole = False
        """Whether the response has begun, and whether all of the body came."""
        self._size = 0

    async def run(self) -> None:
        """Serve it. An unexpected error is logged, and the response says nothing about it."""
        try:
            await self._within_time()
        except ClientDisconnect:
            pass  # nobody waits for a response
        except (Refusal, HoldfastError, HTTPException) as error:
            await self._fail(error)
        except Exception as error:
            log.exception("%s %s failed", self._scope["method"], self._scope["path"])
            await self._fail(error)

    async def _within_time(self) -> None:
        seconds = self._limits.timeout.total_seconds()
        try:
            async with asyncio.timeout(seconds) as self._deadline:
                self._scope[WAIT] = self._wait
                self._check_headers()
                await self._app(self._scope, self._counted, self._forward)
        except TimeoutError:
            if self._deadline is None or not self._deadline.expired():
                raise
            raise TimedOut(f"no answer within {seconds:g} s; whether it took effect is unknown") from None

    def _wait(self, seconds: float) -> None:
        """Let the request take so much longer, from now on, than others may."""
        if self._deadline is not None and not self._begun:
            now = asyncio.get_running_loop().time()
            self._deadline.reschedule(now + self._limits.timeout.total_seconds() + seconds)

    def _check_headers(self) -> None:
        size = len(self._scope["path"]) + len(self._scope["query_string"])
        size += sum(len(name) + len(value) for name, value in self._scope["headers"])
        if size > self._limits.headers:
            raise HeadersTooLarge(f"{size} bytes of address and headers; the limit is {self._limits.headers}")
        if self._headers.get("content-encoding", "identity") != "identity":
            raise UnsupportedMediaType("compressed bodies are not read here; send them as they are")
        length = self._headers.get("content-length", "0")
        if length.isdecimal() and int(length) > self._limits.body:
            raise self._too_large()

    async def _counted(self) -> Message:
        """The next piece of the body. Time does not run meanwhile: clients have a limit of their own for it,
        which the connection keeps."""
        with self._stopped_clock() if not self._whole else nullcontext():
            message = await self._receive()
        self._whole = not message.get("more_body", False)
        self._size += len(message.get("body", b""))
        if self._size > self._limits.body:
            # In this form the framework lets it pass, whoever is reading the body.
            raise HTTPException(413, str(self._too_large()))
        return message

    @contextmanager
    def _stopped_clock(self) -> Iterator[None]:
        end = None if self._deadline is None else self._deadline.when()
        if self._deadline is None or end is None:
            yield
            return
        now = asyncio.get_running_loop().time
        left = end - now()
        self._deadline.reschedule(None)
        yield
        if not self._begun:
            self._deadline.reschedule(now() + left)

    def _too_large(self) -> PayloadTooLarge:
        return PayloadTooLarge(f"the body is over the limit of {self._limits.body} bytes; send less at once")

    async def _forward(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._begun = True
            if self._deadline is not None:
                self._deadline.reschedule(None)
            given = {name.lower() for name, _ in message["headers"]}
            more = [each for each in ALWAYS if each[0] not in given]
            message = {**message, "headers": [*message["headers"], *more]}
        await self._send(message)

    async def _fail(self, error: Exception) -> None:
        if self._begun:
            raise error  # the server cuts the connection: half a response must not look whole
        self._deadline = None
        await problem(error, self._scope)(self._scope, self._receive, self._forward)


class FetchMetadata:
    """Refuses what pages of other sites send: they cannot even see whether something is there."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            check_site(scope["method"], Headers(scope=scope))
        await self._app(scope, receive, send)


def check_site(method: str, headers: Headers) -> None:
    """Raise `CrossSite` where a page of another origin asks; another port of this host is another origin.

    A link to us may be followed from anywhere: what a whole tab then shows, the page before it cannot see.
    Browsers leave the metadata out where there is no TLS and the host is another machine: then `Origin`
    decides. Programs send neither.
    """
    origin, site = headers.get("Origin"), headers.get("Sec-Fetch-Site")
    own = origin is None or _netloc(origin) == headers.get("Host", "").lower()
    if own if site is None else site in _OWN_SITES or _is_navigation(method, headers):
        return
    raise CrossSite(
        "this was sent by a page of another site; only its own pages and programs can use this server"
    )


def _is_navigation(method: str, headers: Headers) -> bool:
    mode, goal = headers.get("Sec-Fetch-Mode"), headers.get("Sec-Fetch-Dest")
    return (method, mode, goal) == ("GET", "navigate", "document")


def _netloc(origin: str) -> str:
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        raise InvalidInput(f"Origin {origin[:100]!r} is no origin; send scheme, host and port") from None


class RequestMetrics:
    """Requests by route and how long they took. No label grows with what people send."""

    def __init__(self) -> None:
        self._count = Counter(REQUESTS.name, REQUESTS.meaning, REQUESTS.labels, registry=None)
        self._seconds = observed(REQUEST_SECONDS, BUCKETS)

    def add(self, scope: Scope, status: int, seconds: float) -> None:
        """Count a request whose response has begun."""
        route = path_of(scope) or NONE
        method = scope["method"] if scope["method"] in METHODS else OTHER
        self._count.labels(route, method, str(status)).inc()
        self._seconds.labels(route, method).observe(seconds)

    def metrics(self) -> Iterable[Metric]:
        """For a scrape."""
        yield from self._count.collect()
        yield from self._seconds.collect()


class CountRequests:
    """Counts requests. Add it last, so that it is the outermost middleware."""

    def __init__(self, app: ASGIApp, requests: RequestMetrics) -> None:
        self._app, self._requests = app, requests

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, begun = time.perf_counter(), False

        async def counted(message: Message) -> None:
            nonlocal begun
            if message["type"] == "http.response.start":
                begun = True
                self._requests.add(scope, message["status"], time.perf_counter() - began)
            await send(message)

        try:
            await self._app(scope, receive, counted)
        except Exception:
            if not begun:
                self._requests.add(scope, 500, time.perf_counter() - began)
            raise
