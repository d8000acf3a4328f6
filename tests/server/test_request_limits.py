"""Limits: what is too large, too deep, too fast or too slow is refused, and costs little."""

from __future__ import annotations

import asyncio
import gzip
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Annotated

import pytest
from fastapi import APIRouter, Body, Depends, Request
from house import House, house, problem

import holdfast
from holdfast.model.errors import InvalidInput
from holdfast.server.auth.bucket import Buckets
from holdfast.server.auth.guard import anybody, needs
from holdfast.server.jsonbody import check_depth, parse
from holdfast.server.refusals import TooManyRequests

JSON = {"Content-Type": "application/json"}


def add_routes(found: House) -> None:
    """Routes that take a body whole, as a stream, not at all, and one that is slow."""
    router = APIRouter(dependencies=[Depends(anybody)])

    @router.post("/whole")
    async def whole(body: Annotated[object, Body()]) -> None:
        return None

    @router.post("/stream")
    async def stream(request: Request) -> int:
        return sum([len(part) async for part in request.stream()])

    @router.get("/slow")
    async def slow() -> None:
        await asyncio.sleep(30)

    @router.get("/counted", dependencies=[Depends(needs("read"))])
    async def counted() -> None:
        return None

    found.app.include_router(router)


async def chunks(size: int, count: int) -> AsyncIterator[bytes]:
    for _ in range(count):
        yield b"x" * size


async def test_a_body_over_the_limit_is_refused_whether_its_length_is_told_or_not(bus: holdfast.Bus) -> None:
    async with house(bus, limits={"body": 1000}) as found:
        add_routes(found)
        for path in ("/whole", "/stream"):
            told = problem(await found.client.post(path, content=b"1" * 1001, headers=JSON), 413)
            assert "over the limit of 1000 bytes" in str(told["detail"])
            problem(await found.client.post(path, content=chunks(100, 11), headers=JSON), 413)
        problem(await found.client.post("/stream", content=chunks(100, 11)), 413)
        assert (await found.client.post("/stream", content=chunks(100, 10))).json() == 1000
        assert (await found.client.post("/whole", content=b"1" * 1000, headers=JSON)).status_code == 200


async def test_a_length_that_is_a_lie_does_not_help(bus: holdfast.Bus) -> None:
    async with house(bus, limits={"body": 1000}) as found:
        add_routes(found)
        for length in ("1", "-1", "0x10", "²"):
            lie = {b"Content-Length": length.encode()}
            answer = await found.client.post("/stream", content=chunks(100, 11), headers=lie)
            problem(answer, 413)


async def test_headers_over_the_limit_are_refused(bus: holdfast.Bus) -> None:
    async with house(bus, limits={"headers": 2000}) as found:
        problem(await found.client.get("/healthz", headers={"X-Long": "x" * 2000}), 431)
        problem(await found.client.get("/healthz?" + "x" * 2000), 431)
        assert (await found.client.get("/healthz", headers={"X-Long": "x" * 1000})).status_code == 200


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br", "GZIP", "identity, gzip", "zstd"])
async def test_a_compressed_body_is_refused_unread(bus: holdfast.Bus, encoding: str) -> None:
    bomb = gzip.compress(b"0" * 10_000_000)
    async with house(bus) as found:
        add_routes(found)
        answer = await found.client.post(
            "/whole", content=bomb, headers={**JSON, "Content-Encoding": encoding}
        )
        problem(answer, 415)


async def test_json_that_nests_too_deep_is_refused(bus: holdfast.Bus) -> None:
    async with house(bus, limits={"depth": 10}) as found:
        add_routes(found)

        async def send(body: bytes, kind: str = "application/json") -> int:
            answer = await found.client.post("/whole", content=body, headers={"Content-Type": kind})
            return answer.status_code

        assert await send(b"[" * 10 + b"]" * 10) == 200
        assert await send(b"[" * 11 + b"]" * 11) == 400
        assert await send(b"[" * 11 + b"]" * 11, "application/merge-patch+json; charset=utf-8") == 400
        assert await send(b'{"a":' * 11 + b"1" + b"}" * 11) == 400
        assert await send(b'["' + b"[" * 100 + b'"]') == 200
        assert await send(b'["\\"' + b"[" * 100 + b'"]') == 200
        assert await send(b"[" + b",".join([b"[]"] * 100) + b"]") == 200
        assert await send(b"[" * 1_000_000) == 400


@pytest.mark.parametrize(
    "body",
    [b'"' + b'\\"' * 4_000_000, b'"' * 8_000_000, b'["' + b"\\" * 8_000_000, b'"[' * 2_000_000],
)
def test_no_body_makes_the_look_at_its_depth_slow(body: bytes) -> None:
    began = time.process_time()
    with suppress(InvalidInput):
        check_depth(body, 10)
    assert time.process_time() - began < 5


def test_a_line_of_json_is_parsed_or_refused() -> None:
    assert parse(b'{"a": [1]}', 10) == {"a": [1]}
    for text in (b"", b"{", b"NaN", b"\xff", b"[" * 11 + b"]" * 11):
        with pytest.raises(InvalidInput):
            parse(text, 10)


async def test_a_request_that_takes_too_long_is_answered(bus: holdfast.Bus) -> None:
    async with house(bus, limits={"timeout": "50ms"}) as found:
        add_routes(found)
        told = problem(await found.client.get("/slow"), 504)
        assert told["detail"] == "no answer within 0.05 s; whether it took effect is unknown"


async def test_a_body_that_never_ends_is_not_waited_for(bus: holdfast.Bus) -> None:
    async def drip() -> AsyncIterator[bytes]:
        yield b"["
        await asyncio.Event().wait()

    async with house(bus, limits={"timeout": "50ms"}) as found:
        add_routes(found)
        for path in ("/whole", "/stream"):
            problem(await found.client.post(path, content=drip(), headers=JSON), 504)


def test_a_bucket_gives_a_rate_and_twice_as_much_at_once() -> None:
    now = 100.0
    buckets = Buckets(10, lambda: now)
    for _ in range(20):
        buckets.take("a")
    with pytest.raises(TooManyRequests) as refused:
        buckets.take("a")
    assert refused.value.headers == {"Retry-After": "1"}
    buckets.take("b")
    now += 0.1
    buckets.take("a")
    with pytest.raises(TooManyRequests):
        buckets.take("a")
    now += 60
    for _ in range(20):
        buckets.take("a")
    with pytest.raises(TooManyRequests):
        buckets.take("a")


def test_a_slow_rate_says_how_long_to_wait() -> None:
    buckets = Buckets(1, lambda: 0.0)
    buckets.take("a")
    buckets.take("a")
    with pytest.raises(TooManyRequests) as refused:
        buckets.take("a")
    assert refused.value.seconds == 1


def test_buckets_that_are_full_again_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.server.auth.bucket._MOST", 3)
    now = 0.0
    buckets = Buckets(1, lambda: now)
    for _ in range(2):
        buckets.take("spent")
    for name in "abcdefgh":
        now += 1.0
        buckets.take(name)
        if name == "a":
            buckets.take("spent")
    assert len(buckets._full_at) <= 4


def test_without_a_rate_nothing_is_counted() -> None:
    buckets = Buckets(0, lambda: 0.0)
    for _ in range(1000):
        buckets.take("a")


async def test_each_token_has_a_rate_of_its_own(bus: holdfast.Bus) -> None:
    async with house(bus, limits={"rate": 1}) as found:
        add_routes(found)
        one, two = await found.bearer("reader"), await found.bearer("reader")
        statuses = [(await found.client.get("/counted", headers=one)).status_code for _ in range(3)]
        assert statuses == [200, 200, 429]
        answer = await found.client.get("/counted", headers=one)
        assert problem(answer, 429)["type"] == "urn:holdfast:problem:too-many-requests"
        assert answer.headers["Retry-After"] == "1"
        assert (await found.client.get("/counted", headers=two)).status_code == 200


async def test_a_local_caller_without_a_token_has_no_rate(bus: holdfast.Bus) -> None:
    async with house(bus, limits={"rate": 1}) as found:
        add_routes(found)
        assert {(await found.client.get("/counted")).status_code for _ in range(10)} == {200}
