"""Limits: what is too large, too deep, too fast or too slow is refused, and costs little."""

from __future__ import annotations

import asyncio
import gzip
import json
import time
from collections.abc import AsyncIterator
from itertools import pairwise
from typing import Annotated

import pytest
from application import Application, application, problem
from fastapi import Body, Depends, Request
from fastapi.exceptions import RequestValidationError
from hypothesis import given
from hypothesis import strategies as st

import holdfast
from holdfast.model.errors import InvalidInput
from holdfast.server import bodies
from holdfast.server.auth.guard import Router, anybody, needs
from holdfast.server.bodies import BodyBounds, parse_body, parse_line
from holdfast.server.errors import TooManyRequests
from holdfast.server.limits import Buckets

JSON = {"Content-Type": "application/json"}


def add_routes(found: Application) -> None:
    """Routes that take a body whole, as a stream, not at all, and one that is slow."""
    router = Router(dependencies=[Depends(anybody)])

    @router.post("/whole")
    async def whole(body: Annotated[object, Body()]) -> None:
        return None

    @router.post("/stream")
    async def stream(request: Request) -> int:
        return sum([len(part) async for part in request.stream()])

    @router.get("/slow")
    async def slow() -> None:
        await asyncio.sleep(30)

    @router.post("/late")
    async def late(body: Annotated[object, Body()]) -> None:
        await asyncio.sleep(30)

    @router.get("/counted", dependencies=[Depends(needs("read"))])
    async def counted() -> None:
        return None

    found.app.include_router(router)


async def chunks(size: int, count: int) -> AsyncIterator[bytes]:
    for _ in range(count):
        yield b"x" * size


async def test_a_body_over_the_limit_is_refused_whether_its_length_is_told_or_not(bus: holdfast.Bus) -> None:
    async with application(bus, limits={"body": 1000}) as found:
        add_routes(found)
        for path in ("/whole", "/stream"):
            told = problem(await found.client.post(path, content=b"1" * 1001, headers=JSON), 413)
            assert "over the limit of 1000 bytes" in str(told["detail"])
            problem(await found.client.post(path, content=chunks(100, 11), headers=JSON), 413)
        problem(await found.client.post("/stream", content=chunks(100, 11)), 413)
        assert (await found.client.post("/stream", content=chunks(100, 10))).json() == 1000
        assert (
            await found.client.post("/whole", content=b'"' + b"1" * 998 + b'"', headers=JSON)
        ).status_code == 200


async def test_a_body_that_says_it_is_too_long_is_not_waited_for(bus: holdfast.Bus) -> None:
    async def nothing() -> AsyncIterator[bytes]:
        raise AssertionError("somebody reads it")
        yield b""

    async with application(bus, limits={"body": 1000}) as found:
        add_routes(found)
        for path in ("/whole", "/stream"):
            sent = {**JSON, "Content-Length": "1001"}
            problem(await found.client.post(path, content=nothing(), headers=sent), 413)


async def test_a_length_that_is_a_lie_does_not_help(bus: holdfast.Bus) -> None:
    async with application(bus, limits={"body": 1000}) as found:
        add_routes(found)
        for length in ("1", "-1", "0x10", "²"):
            lie = {b"Content-Length": length.encode()}
            answer = await found.client.post("/stream", content=chunks(100, 11), headers=lie)
            problem(answer, 413)


async def test_headers_over_the_limit_are_refused(bus: holdfast.Bus) -> None:
    async with application(bus, limits={"headers": 2000}) as found:
        problem(await found.client.get("/healthz", headers={"X-Long": "x" * 2000}), 431)
        problem(await found.client.get("/healthz?" + "x" * 2000), 431)
        assert (await found.client.get("/healthz", headers={"X-Long": "x" * 1000})).status_code == 200


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br", "GZIP", "identity, gzip", "zstd"])
async def test_a_compressed_body_is_refused_unread(bus: holdfast.Bus, encoding: str) -> None:
    bomb = gzip.compress(b"0" * 10_000_000)
    async with application(bus) as found:
        add_routes(found)
        answer = await found.client.post(
            "/whole", content=bomb, headers={**JSON, "Content-Encoding": encoding}
        )
        problem(answer, 415)


async def test_json_that_nests_too_deep_is_refused(bus: holdfast.Bus) -> None:
    async with application(bus, limits={"depth": 10}) as found:
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


BOUNDS = BodyBounds(depth=10, values=20_000, items=100)
NUMBERS = b'{"data":[' + b"1," * 20_000 + b"1]}"
HOSTILE = {
    "escapes": b'"' + b'\\"' * 4_000_000,
    "quotes": b'"' * 8_000_000,
    "backslashes": b'["' + b"\\" * 8_000_000,
    "texts": b'"[' * 2_000_000,
    "digits": b"1" * 16_000_000,
    "brackets": b"[" * 16_000_000,
    "commas": b"," * 16_000_000,
    "spaces": b" " * 16_000_000,
    "events": b'{"events":[' + b"{}," * 5_000_000 + b"{}]}",
    "numbers": b'{"events":[' + b"1," * 500_000 + b"1]}",
    "members": b"{" + b'"a":1,' * 2_000_000 + b'"a":1}',
    "headers": b'{"headers":{' + b'"a":1,' * 100_000 + b'"a":1}}',
    "values of an event": NUMBERS,
    "values of a batch": b'{"events":[' + b",".join([NUMBERS[:30_000] + b"1]}"] * 50) + b"]}",
    "a long integer": b'{"data":' + b"9" * 10_000 + b"}",
    "a large number": b'{"data":1e999999}',
    "half a character": b'{"data":"\\ud800"}',
    "two bytes a letter": '{"data":1}'.encode("utf-16"),
    "four bytes a letter": ("[" * 100 + "]" * 100).encode("utf-32"),
    "events twice": b'{"events":[{}],"events":[{}]}',
    "a comma too many": b'{"events":[{},]}',
    "a bracket too many": b'{"events":[{}]]}',
}


@pytest.mark.parametrize("body", HOSTILE.values(), ids=HOSTILE)
async def test_a_hostile_body_is_refused_in_short_pieces(
    body: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each piece is timed by the processor's clock: a busy machine makes none longer."""
    pieces = [time.process_time()]

    async def others(_: float) -> None:
        pieces.append(time.process_time())

    monkeypatch.setattr(bodies.asyncio, "sleep", others)
    with pytest.raises((InvalidInput, RequestValidationError)):
        await parse_body(body, BOUNDS)
    pieces.append(time.process_time())
    assert max(later - earlier for earlier, later in pairwise(pieces)) < 0.5
    assert pieces[-1] - pieces[0] < 5


async def test_what_is_within_the_bounds_is_parsed() -> None:
    data = {"a": [1, "[,]", {"b": ['"', 10**30, 1.5, None]}]}
    event = {"id": "e", "data": data, "headers": {"a": "b"}}
    for value in (1, "a", [], {}, None, {"limit": 3, "jobs": [{"id": "1"}]}, "x" * 3_000_000):
        assert await parse_body(json.dumps(value).encode(), BOUNDS) == value
    one = await parse_body(json.dumps(event, indent=1).encode(), BOUNDS)
    assert (one["id"], json.loads(one["data"].content)) == ("e", data)
    for count in range(4):
        batch = {"at": "x", "events": [event] * count, "priority": 1}
        got = await parse_body(json.dumps(batch, indent=1).encode(), BOUNDS)
        assert [json.loads(each.pop("data").content) for each in got["events"]] == [data] * count
        assert got == {"at": "x", "events": [{"id": "e", "headers": {"a": "b"}}] * count, "priority": 1}
    assert await parse_body(b'{"events":[1,"a",[{}]]}', BOUNDS) == {"events": [1, "a", [{}]]}


@given(
    st.recursive(
        st.none() | st.integers() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_the_look_before_changes_nothing(value: object) -> None:
    got = asyncio.run(parse_body(json.dumps({"data": value}).encode(), BodyBounds(1000, 10**6, 1000)))
    content = got["data"]
    assert value == (None if content is None else json.loads(content.content))


async def test_a_line_of_json_is_parsed_or_refused() -> None:
    assert await parse_line(b'{"a": [1]}', BOUNDS, bodies.TimeSlice()) == {"a": [1]}
    for text in (b"", b"{", b"NaN", b"\xff", b"[" * 11 + b"]" * 11):
        with pytest.raises(InvalidInput):
            await parse_line(text, BOUNDS, bodies.TimeSlice())


async def test_a_request_that_takes_too_long_is_answered(bus: holdfast.Bus) -> None:
    async with application(bus, limits={"timeout": "50ms"}) as found:
        add_routes(found)
        told = problem(await found.client.get("/slow"), 504)
        assert told["detail"] == "no answer within 0.05 s; whether it took effect is unknown"


async def test_the_time_of_a_body_is_not_the_time_of_its_request(bus: holdfast.Bus) -> None:
    """A client has its own limit for it, `body_timeout`; what comes after the body is timed as ever."""

    async def drip() -> AsyncIterator[bytes]:
        yield b"["
        await asyncio.sleep(0.1)  # the client's, not the test's
        yield b"1]"

    async with application(bus, limits={"timeout": "50ms"}) as found:
        add_routes(found)
        for path in ("/whole", "/stream"):
            answer = await found.client.post(path, content=drip(), headers=JSON)
            assert answer.status_code == 200, answer.text
        problem(await found.client.post("/late", content=drip(), headers=JSON), 504)


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
    monkeypatch.setattr("holdfast.server.limits._MOST", 3)
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
    async with application(bus, limits={"rate": 1}) as found:
        add_routes(found)
        one, two = await found.bearer("reader"), await found.bearer("reader")
        statuses = [(await found.client.get("/counted", headers=one)).status_code for _ in range(3)]
        assert statuses == [200, 200, 429]
        answer = await found.client.get("/counted", headers=one)
        assert problem(answer, 429)["type"] == "urn:holdfast:problem:too-many-requests"
        assert answer.headers["Retry-After"] == "1"
        assert (await found.client.get("/counted", headers=two)).status_code == 200


async def test_a_local_caller_without_a_token_has_no_rate(bus: holdfast.Bus) -> None:
    async with application(bus, limits={"rate": 1}) as found:
        add_routes(found)
        assert {(await found.client.get("/counted")).status_code for _ in range(10)} == {200}
