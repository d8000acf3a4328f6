"""Requests: how many there were and how long they took, by route. No label grows with what people send."""

from __future__ import annotations

import time
from collections.abc import Iterable

from prometheus_client import Counter
from prometheus_client.core import Metric
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from holdfast.server.catalog import REQUEST_SECONDS, REQUESTS
from holdfast.server.families import observed
from holdfast.server.paths import path_of

BUCKETS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30)
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
NONE, OTHER = "none", "other"


class Requests:
    """What was counted so far."""

    def __init__(self) -> None:
        self._count = Counter(REQUESTS.name, REQUESTS.meaning, REQUESTS.labels, registry=None)
        self._seconds = observed(REQUEST_SECONDS, BUCKETS)

    def add(self, scope: Scope, status: int, seconds: float) -> None:
        """One request whose answer has begun."""
        route = path_of(scope) or NONE
        method = scope["method"] if scope["method"] in METHODS else OTHER
        self._count.labels(route, method, str(status)).inc()
        self._seconds.labels(route, method).observe(seconds)

    def metrics(self) -> Iterable[Metric]:
        """For a scrape."""
        yield from self._count.collect()
        yield from self._seconds.collect()


class CountRequests:
    """The middleware that counts. Add it last, so that it is the outermost one."""

    def __init__(self, app: ASGIApp, requests: Requests) -> None:
        self._app, self._requests = app, requests

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, begun = time.perf_counter(), False

        async def watch(message: Message) -> None:
            nonlocal begun
            if message["type"] == "http.response.start":
                begun = True
                self._requests.add(scope, message["status"], time.perf_counter() - began)
            await send(message)

        try:
            await self._app(scope, receive, watch)
        except Exception:
            if not begun:
                self._requests.add(scope, 500, time.perf_counter() - began)
            raise
