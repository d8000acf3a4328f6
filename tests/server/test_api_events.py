"""Publishing over REST: one, many, a stream; and what is repeated changes nothing."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from application import application, problem

import holdfast
from kit import CHANNEL, CONSUMER, read_all, state, subscribe

EVENTS = f"/api/v1/channels/{CHANNEL}/events"
KEY = {"Idempotency-Key": "order-17"}
LINES = {"Content-Type": "application/x-ndjson"}


def lines(*values: Any) -> bytes:
    return b"".join(json.dumps(value).encode() + b"\n" for value in values)


async def data(bus: holdfast.Bus) -> list[Any]:
    return [entry.event.json() for entry in await read_all(bus.partitions.all[0].backend, CHANNEL)]


async def test_an_event_is_published_once(each: holdfast.Bus) -> None:
    body = {"data": {"n": 1}, "id": "e-1", "type": "order.placed", "key": "k", "headers": {"tenant": "a"}}
    async with application(each) as found:
        first = await found.client.post(EVENTS, json=body)
        again = await found.client.post(EVENTS, json=body)
        assert (first.status_code, again.status_code) == (201, 200)
        assert again.json() == {**first.json(), "duplicate": True}
        refused = problem(await found.client.post(EVENTS, json={**body, "data": {"n": 2}}), 409)
        assert refused["ids"] == ["e-1"]
    [entry] = await read_all(each.partitions.all[0].backend, CHANNEL)
    event = entry.event
    assert (event.json(), event.type, event.key, event.headers) == (
        {"n": 1},
        "order.placed",
        "k",
        {"tenant": "a"},
    )
    assert entry.position == first.json()["position"]


async def test_a_key_makes_a_repeat_harmless(each: holdfast.Bus) -> None:
    batch = {"events": [{"data": 1}, {"data": 2, "id": "own"}, {"data": 3}]}
    async with application(each) as found:
        one = [await found.client.post(EVENTS, json={"data": 0}, headers=KEY) for _ in range(2)]
        many = [await found.client.post(f"{EVENTS}/batch", json=batch, headers=KEY) for _ in range(2)]
        assert [answer.status_code for answer in one] == [201, 200]
        receipts = many[1].json()["receipts"]
        assert [each["id"] for each in receipts] == ["order-17-0", "own", "order-17-2"]
        assert all(each["duplicate"] for each in receipts)
        problem(await found.client.post(EVENTS, json={"data": "other"}, headers=KEY), 409)
    assert await data(each) == [0, 1, 2, 3]


async def test_without_a_key_or_an_id_each_call_is_an_event(bus: holdfast.Bus) -> None:
    async with application(bus) as found:
        ids = {(await found.client.post(EVENTS, json={"data": 1})).json()["id"] for _ in range(2)}
    assert len(ids) == len(await data(bus)) == 2


WRONG: list[tuple[dict[str, Any], int]] = [
    ({"data": 1, "data_base64": "AA=="}, 400),
    ({"data_base64": "no base64!"}, 400),
    ({"data": 1, "at": "2030-01-31T09:00:00"}, 422),
    ({"data": 1, "id": "a\nb"}, 400),
    ({"data": 1, "headers": {"a": "\u0000"}}, 400),
    ({"data": 1, "headers": {f"h-{n}": "" for n in range(65)}}, 413),
    ({"data": "x" * 1_048_577}, 413),
    ({"data": 1, "dat": 2}, 422),
    ({"data": 1, "priority": 101}, 422),
]


async def test_an_event_that_nobody_can_carry_is_refused(bus: holdfast.Bus) -> None:
    async with application(bus) as found:
        for body, status in WRONG:
            problem(await found.client.post(EVENTS, json=body), status)
            both = {"events": [{"data": 0}, body]}
            problem(await found.client.post(f"{EVENTS}/batch", json=both), status)
    assert await data(bus) == []


async def test_json_under_another_name_is_told(bus: holdfast.Bus) -> None:
    async with application(bus) as found:
        for name in ("application/x-www-form-urlencoded", "text/plain", ""):
            headers = {"Content-Type": name} if name else {}
            told = problem(await found.client.post(EVENTS, content=b'{"data": 1}', headers=headers), 415)
            assert "Content-Type: application/json" in str(told["detail"])
        headers = {"Content-Type": "application/json; charset=utf-8"}
        assert (await found.client.post(EVENTS, content=b'{"data": 1}', headers=headers)).status_code == 201
        problem(await found.client.post(EVENTS), 422)


async def test_bytes_a_time_and_a_priority_are_carried(bus: holdfast.Bus) -> None:
    await subscribe(bus.partitions.all[0].backend)
    content = base64.b64encode(b"\x00\xff").decode()
    async with application(bus) as found:
        await found.client.post(EVENTS, json={"data": 1, "id": "late", "at": "2199-01-01T00:00:00Z"})
        await found.client.post(EVENTS, json={"data": 2, "id": "low"})
        await found.client.post(EVENTS, json={"data_base64": content, "id": "high", "priority": 9})
    assert await state(bus.partitions.all[0].backend, "late") == "scheduled"
    jobs = await bus.poll(CHANNEL, CONSUMER, limit=3)
    assert [(job.event.id, job.event.data) for job in jobs] == [("high", b"\x00\xff"), ("low", b"2")]


async def test_a_batch_over_the_limit_is_refused_whole(bus: holdfast.Bus) -> None:
    async with application(bus, limits={"batch": 2}) as found:
        body = {"events": [{"data": n} for n in range(3)]}
        refused = problem(await found.client.post(f"{EVENTS}/batch", json=body), 413)
        assert "at most 2" in str(refused["detail"])
        problem(await found.client.post(f"{EVENTS}/batch", json={"events": []}), 422)
    assert await data(bus) == []


async def test_a_full_consumer_asks_for_patience(bus: holdfast.Bus) -> None:
    await bus.subscribe(CHANNEL, CONSUMER, max_depth=1)
    async with application(bus) as found:
        assert (await found.client.post(EVENTS, json={"data": 1})).status_code == 201
        answer = await found.client.post(EVENTS, json={"data": 2})
        assert problem(answer, 429)["type"] == "urn:holdfast:problem:overloaded"
        assert int(answer.headers["Retry-After"]) >= 1


async def test_a_stream_is_published_as_it_comes(each: holdfast.Bus) -> None:
    async def torn() -> AsyncIterator[bytes]:
        whole = lines(*({"data": n} for n in range(7))) + b"\n  \n" + b'{"data": 7}'  # blank lines, no end
        for start in range(0, len(whole), 5):
            yield whole[start : start + 5]

    async with application(each, limits={"batch": 3}) as found:
        answer = await found.client.post(f"{EVENTS}/stream", content=torn(), headers=KEY | LINES)
        assert (answer.status_code, answer.json()) == (200, {"published": 8, "duplicates": 0})
        again = await found.client.post(f"{EVENTS}/stream", content=torn(), headers=KEY | LINES)
        assert again.json() == {"published": 0, "duplicates": 8}
    assert await data(each) == list(range(8))


@pytest.mark.parametrize(
    ("line", "status"),
    [
        (b"{nonsense", 400),
        (b"[1]", 400),
        (b'{"dat": 1}', 400),
        (b'{"data": 1, "id": "a\\u0000"}', 400),
        (b'{"data": ' + b"[" * 70 + b"]" * 70 + b"}", 400),
        (b'{"data": "' + b"x" * 1_048_577 + b'"}', 413),
    ],
    ids=["json", "object", "field", "text", "depth", "size"],
)
async def test_a_bad_line_ends_a_stream_and_says_how_far_it_got(
    bus: holdfast.Bus, line: bytes, status: int
) -> None:
    good = [lines({"data": n}) for n in range(6)]
    async with application(bus, limits={"batch": 2}) as found:
        bad = b"".join([*good[:3], line + b"\n", *good[3:]])
        told = problem(await found.client.post(f"{EVENTS}/stream", content=bad, headers=KEY | LINES), status)
        assert str(told["detail"]).startswith("line 4: ")
        assert str(told["detail"]).endswith("; 2 events before it are published")
        assert await data(bus) == [0, 1]
        whole = b"".join([*good[:3], b"\n", *good[3:]])  # what was line 5 still is
        answer = await found.client.post(f"{EVENTS}/stream", content=whole, headers=KEY | LINES)
        assert answer.json() == {"published": 4, "duplicates": 2}
    assert await data(bus) == [0, 1, 2, 3, 4, 5]


async def test_a_stream_has_lines_and_an_end(bus: holdfast.Bus) -> None:
    async with application(bus, limits={"body": "1KB"}) as found:
        problem(await found.client.post(f"{EVENTS}/stream", content=b"\n \n", headers=LINES), 400)
        problem(await found.client.post(f"{EVENTS}/stream", content=b"x" * 1100, headers=LINES), 413)

        async def endless() -> AsyncIterator[bytes]:
            while True:
                yield lines({"data": 1})

        problem(await found.client.post(f"{EVENTS}/stream", content=endless(), headers=LINES), 413)


async def test_only_those_who_may_publish_do(bus: holdfast.Bus) -> None:
    async with application(bus, local=False) as found:
        await found.token("admin")
        for scope in (("reader",), ("producer", "other.>"), ("consumer", CHANNEL, CONSUMER)):
            headers = await found.bearer(*scope)
            problem(await found.client.post(EVENTS, json={"data": 1}, headers=headers), 403)
        headers = await found.bearer("producer", CHANNEL)
        assert (await found.client.post(EVENTS, json={"data": 1}, headers=headers)).status_code == 201
        problem(await found.client.get(EVENTS, headers=headers), 403)
    assert await data(bus) == [1]
