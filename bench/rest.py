"""REST, for benchmarks: a server as a process of its own, the same uvicorn with a constant, and a caller that
costs little beside them."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import socket
import sys
import time
from collections.abc import AsyncIterator, Sequence
from statistics import median
from typing import Any, Self

import orjson

import holdfast
from holdfast.model.scopes import ADMIN
from holdfast.server.auth.tokens import Tokens

from .figure import Figure, Figures
from .payload import stamped
from .stores import PostgresStore, settle

WARM = 20
CHANNEL, CONSUMER = "orders", "billing"


async def constant(scope: dict[str, Any], receive: Any, send: Any) -> None:
    """An application that does nothing."""
    if scope["type"] == "lifespan":
        return
    while (await receive()).get("more_body"):
        continue
    headers = [(b"content-type", b"application/json"), (b"content-length", b"2")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b"{}"})


class Caller:
    """One connection that is kept, and speaks as little HTTP as there must be."""

    def __init__(self, port: int, token: str = "") -> None:
        self._port, self._token = port, token
        self._ends: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._ends is not None:
            self._ends[1].close()

    async def call(self, method: str, path: str, body: bytes = b"") -> bytes:
        """The body of an answer that must be a success."""
        if self._ends is None or self._ends[0].at_eof():  # a server hangs up on who is silent for long
            self._ends = await asyncio.open_connection("127.0.0.1", self._port)
        reader, writer = self._ends
        lines = [f"{method} {path} HTTP/1.1", "Host: localhost", f"Content-Length: {len(body)}"]
        lines += [f"Authorization: Bearer {self._token}"] if self._token else []
        lines += ["Content-Type: application/json"] if body else []
        writer.write("\r\n".join([*lines, "", ""]).encode() + body)
        status, *headers = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        [length] = [line.split(":")[1] for line in headers if line.lower().startswith("content-length:")]
        answer = await reader.readexactly(int(length))
        if not status.startswith("HTTP/1.1 2"):
            raise SystemExit(f"{method} {path}: {status}: {answer.decode()}")
        return answer


@contextlib.asynccontextmanager
async def process(port: int, *arguments: str, **environment: str) -> AsyncIterator[None]:
    """A server on a port, from its first answer to the end of the block."""
    running = await asyncio.create_subprocess_exec(
        sys.executable, *arguments, env=os.environ | environment, stdout=asyncio.subprocess.DEVNULL
    )
    try:
        while True:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                async with Caller(port) as caller:
                    await caller.call("GET", "/healthz")
                    break
            if running.returncode is not None:
                raise SystemExit(f"{arguments} ended with {running.returncode}")
            await asyncio.sleep(0.05)
        yield
    finally:
        if running.returncode is None:
            running.terminate()
        await running.wait()


@contextlib.asynccontextmanager
async def serving(url: str, count: int = 1) -> AsyncIterator[list[Caller]]:
    """`holdfast serve` on a store, and callers with a token."""
    async with holdfast.connect(url) as bus:
        token = (await Tokens(bus, "gbe").create(ADMIN)).text
    port = _free_port()
    options = {"HOLDFAST_URL": url, "HOLDFAST_SERVER__LIMITS__RATE": "0", "HOLDFAST_LOG_FORMAT": "json"}
    async with (
        process(port, "-m", "holdfast.cli", "serve", "--port", str(port), **options),
        _open([Caller(port, token) for _ in range(count)]) as callers,
    ):
        yield callers


@contextlib.asynccontextmanager
async def serving_constant(count: int = 1) -> AsyncIterator[list[Caller]]:
    """uvicorn with an application that does nothing."""
    port = _free_port()
    options = ("--port", str(port), "--no-access-log", "--log-level", "warning", "--lifespan", "off")
    async with (
        process(port, "-m", "uvicorn", "bench.rest:constant", *options),
        _open([Caller(port) for _ in range(count)]) as callers,
    ):
        yield callers


@contextlib.asynccontextmanager
async def _open(callers: Sequence[Caller]) -> AsyncIterator[list[Caller]]:
    async with contextlib.AsyncExitStack() as stack:
        yield [await stack.enter_async_context(caller) for caller in callers]


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as bound:
        port: int = bound.getsockname()[1]
        return port


async def timed(callers: Sequence[Caller], path: str, times: int) -> tuple[list[float], bytes]:
    """Milliseconds for one call of each, as the median of some that take turns; and what the first caller was
    answered last."""
    found: list[list[float]] = [[] for _ in callers]
    answers = [b""] * len(callers)
    for _ in range(times):
        for place, caller in enumerate(callers):
            began = time.perf_counter()
            answers[place] = await caller.call("GET", path)
            found[place].append(1000 * (time.perf_counter() - began))
    return [median(each) for each in found], answers[0]


# publish


async def publish(store: PostgresStore, plan: argparse.Namespace) -> Figures:
    """Events per second over REST: one in each call, and many in each call, by callers side by side."""
    figure = Figure("events/s", "one event in each call", 10)
    constants = Figure("calls/s", "uvicorn returning a constant", 0)
    single = [_event() for _ in range(plan.calls)]
    size = min(plan.batch, plan.published)
    batch = [_batch(size) for _ in range(plan.published // size)]
    path = f"/api/v1/channels/{CHANNEL}/events"
    async with (
        store.empty("rest_publish") as url,
        serving(url, plan.callers) as ours,
        serving_constant(plan.callers) as nothing,
    ):
        await ours[0].call("PUT", f"/api/v1/channels/{CHANNEL}/consumers/{CONSUMER}", b"{}")
        await _spread(ours, path, [_event() for _ in range(WARM * plan.callers)])
        await _spread(nothing, path, single[: WARM * plan.callers])
        for _ in range(plan.rounds):
            constants.theirs.append(plan.calls / await _spread(nothing, path, single))
            seconds = await _spread(ours, path, single)
            figure.theirs.append(plan.calls / seconds)
            constants.ours.append(plan.calls / seconds)
            await settle(url)
            figure.ours.append(size * len(batch) / await _spread(ours, f"{path}/batch", batch))
            await settle(url)
        shown = orjson.loads(await ours[0].call("GET", "/job-status"))
        expected = WARM * plan.callers + plan.rounds * (plan.calls + size * len(batch))
        [queued] = [each["count"] for each in shown["consumers"][0]["statuses"] if each["name"] == "QUEUED"]
        if queued != min(expected, 100_000):
            raise SystemExit(f"{expected} events were published, and {queued} wait")
    figure.more = {"callers": plan.callers, "events in a batch": size}
    return {"publish: batch": figure, "publish: single": constants}


async def _spread(callers: Sequence[Caller], path: str, bodies: Sequence[bytes]) -> float:
    """Seconds that the callers need for all of it, each for its share, one call after the other."""

    async def work(caller: Caller, mine: Sequence[bytes]) -> None:
        for body in mine:
            await caller.call("POST", path, body)

    began = time.perf_counter()
    shares = [bodies[place :: len(callers)] for place in range(len(callers))]
    await asyncio.gather(*(work(caller, mine) for caller, mine in zip(callers, shares, strict=True)))
    return time.perf_counter() - began


def _event() -> bytes:
    return orjson.dumps({"data": stamped().decode()})


def _batch(size: int) -> bytes:
    return orjson.dumps({"events": [{"data": stamped().decode()} for _ in range(size)]})
