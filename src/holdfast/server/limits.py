"""Limits: what one request may cost, before anybody looks into it, and an answer whatever happens."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from holdfast.config.server import Limits
from holdfast.model.errors import HoldfastError
from holdfast.server.problems import problem
from holdfast.server.refusals import (
    HeadersTooLarge,
    PayloadTooLarge,
    Refusal,
    TimedOut,
    UnsupportedMediaType,
)

log = logging.getLogger(__name__)

WAIT = "holdfast.wait"
"""In the scope: how a route that waits for something says for how long."""
ALWAYS = (
    (b"x-content-type-options", b"nosniff"),
    (b"cache-control", b"no-store"),
    (b"cross-origin-resource-policy", b"same-origin"),
)
"""Headers of every answer, unless it has its own."""


class Limiter:
    """Middleware around the whole application."""

    def __init__(self, app: ASGIApp, limits: Limits) -> None:
        self._app, self._limits = app, limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        await _Exchange(self._app, self._limits, scope, receive, send).run()


class _Exchange:
    """One request and its answer."""

    def __init__(self, app: ASGIApp, limits: Limits, scope: Scope, receive: Receive, send: Send) -> None:
        self._app, self._limits = app, limits
        self._scope, self._receive, self._send = scope, receive, send
        self._headers = Headers(scope=scope)
        self._deadline: asyncio.Timeout | None = None
        self._begun = self._whole = False
        """Whether the answer has begun, and whether all of the body came."""
        self._size = 0

    async def run(self) -> None:
        """Serve it. An error that nobody expected is logged, and answered without a word about it."""
        try:
            await self._within_time()
        except ClientDisconnect:
            pass  # there is nobody to be answered
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
            raise error  # the server cuts the connection: half an answer must not look whole
        self._deadline = None
        await problem(error, self._scope)(self._scope, self._receive, self._forward)
