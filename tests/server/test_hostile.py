"""Hostile input: names, queries and bodies. The answer is a problem, never a crash."""

from __future__ import annotations

import gzip
import json
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from application import application
from world import CHANNEL, Asked, asked, content, picture, settle

import holdfast
from holdfast.server.routes import methods_at, routes_of

NAMES = [
    "..",
    "../../etc/passwd",
    "a/../b",
    "a..b",
    ".a",
    "a.",
    "*",
    ">",
    "a.*",
    "a b",
    "A",
    "\x00",
    "a\x00b",
    "a\nb",
    "a\r\nX-Injected: 1",
    "\u00e4",
    "\U0001f4a9",
    "\u202ea",
    "a" * 129,
    "a" * 5000,
    "'; DROP TABLE holdfast.jobs; --",
    '" OR ""="',
    "${jndi:ldap://x}",
    "{{7*7}}",
    "%s%n",
    "<script>alert(1)</script>",
    "-1",
    "1e309",
    "99999999999999999999999999",
    "null",
    "hf_0123456789abcdef_" + "A" * 43,
]
VALUES = [
    "",
    "\x00",
    "a\nb",
    "\U0001f4a9",
    "a" * 5000,
    "'; DROP TABLE holdfast.jobs; --",
    "-1",
    "1e309",
    "9" * 30,
]
BODIES_TO_TRY: list[bytes] = [
    b"",
    b"null",
    b"[]",
    b"{}",
    b"0",
    b'"text"',
    b"{",
    b"NaN",
    b"[1e400]",
    b"\xff\xfe\x00",
    b'{"a": "\\ud800"}',
    b'{"a": "\\u0000"}',
    b"[" * 10_000,
    b'{"a":' * 10_000,
    b'{"__proto__": {"x": 1}}',
    b'{"id": ' + b"9" * 5000 + b"}",
    json.dumps(dict.fromkeys(map(str, range(5000)))).encode(),
    gzip.compress(b"{}"),
    b"x: !!python/object/apply:os.system ['true']",
]


async def send(client: httpx.AsyncClient, method: str, path: str, **more: Any) -> httpx.Response:
    try:
        return await client.request(method, path, **more)
    except httpx.InvalidURL:
        return httpx.Response(400)  # no client can send it


def check(answer: httpx.Response, where: object) -> None:
    assert answer.status_code < 500, f"{where}: {answer.status_code} {answer.text}"
    assert "X-Injected" not in answer.headers
    if answer.status_code >= 400 and answer.content:
        assert answer.headers["content-type"] == "application/problem+json", f"{where}: {answer.text}"
        assert "Traceback" not in answer.text


def placeholders(each: Asked) -> list[str]:
    return [part.strip("{}") for part in each.template.split("/") if part.startswith("{")]


async def test_a_hostile_name_in_any_path_is_refused_and_changes_nothing(bus: holdfast.Bus) -> None:
    world = await settle(bus)
    async with application(bus) as found:
        before = await picture(bus)
        for each in asked(found):
            for place in placeholders(each):
                for name in NAMES:
                    encoded = quote(name, safe="").replace(".", "%2E")  # or a client would walk up the path
                    path = world.path(each.template, **{place: encoded})
                    answer = await send(
                        found.client, each.method, path, **content(world.body(each.operation))
                    )
                    check(answer, (each, place, name))
                    if place in ("channel", "channelId", "consumer", "consumerId") and len(name) < 200:
                        known = name in ("-1", "1e309", "99999999999999999999999999", "null")
                        assert answer.status_code in ((400, 404, 405) if not known else range(200, 500))
        after = await picture(bus)
    # A schedule may be called `null`, and be run.
    assert [each for each in after["log"] if not each.event.source.startswith("holdfast:")] == before["log"]
    assert after["jobs"] == before["jobs"]


async def test_a_hostile_query_is_refused_or_harmless(bus: holdfast.Bus) -> None:
    world = await settle(bus)
    async with application(bus) as found:
        document = found.app.openapi()
        for each in asked(found):
            operation = document["paths"][each.template][each.method.lower()]
            queries = [every["name"] for every in operation.get("parameters", []) if every["in"] == "query"]
            for query in [*queries, "unknown"]:
                for value in VALUES:
                    path = f"{world.path(each.template)}?{query}={quote(value, safe='')}"
                    answer = await send(
                        found.client, each.method, path, **content(world.body(each.operation))
                    )
                    check(answer, (each, query, value))


@pytest.mark.parametrize("kind", ["application/json", "application/x-ndjson", ""])
async def test_a_hostile_body_is_refused_or_harmless(bus: holdfast.Bus, kind: str) -> None:
    world = await settle(bus)
    async with application(bus) as found:
        writes = [each for each in asked(found) if each.method in ("POST", "PUT", "PATCH")]
        for each in writes:
            for body in BODIES_TO_TRY:
                answer = await found.client.request(
                    each.method,
                    world.path(each.template),
                    content=body,
                    headers={"Content-Type": kind} if kind else {},
                )
                check(answer, (each, body[:50]))
    assert CHANNEL in await bus.partitions.all[0].backend.channels.names()


async def test_an_address_puts_no_words_into_a_page(bus: holdfast.Bus) -> None:
    """A link from elsewhere could have our page tell its reader what to do."""
    async with application(bus) as found:
        for path in ("/login", "/channels"):
            shown = await found.client.get(path, params={"notice": "Call 555 for a new token"})
            assert "Call 555" not in shown.text
        assert "It is paused now." in (await found.client.get("/channels?notice=paused")).text


async def test_a_thousand_dead_letters_can_be_chosen_and_not_many_more(bus: holdfast.Bus) -> None:
    chosen = {"act": "requeue", "item": [f"job:c:w:{number}" for number in range(1000)]}
    async with application(bus) as found:
        asked = await found.client.post("/deadletters/ask", data=chosen, headers=found.form)
        assert asked.status_code == 404, asked.text  # there is none of them
        many = {"item": ["x"] * 2500}
        asked = await found.client.post("/deadletters/ask", data=many, headers=found.form)
        assert asked.status_code == 413


async def test_no_route_takes_another_method_for_its_own(bus: holdfast.Bus) -> None:
    """Neither a method that it has not, nor one that a header or a query asks for instead."""
    world = await settle(bus)
    async with application(bus) as found:
        before = await picture(bus)
        for route in routes_of(found.app):
            path = route.path_format.format(**world.names, act="retry")
            own = methods_at(found.app, path)
            for method in {"HEAD", "OPTIONS", "TRACE", "PATCH", "PROPFIND"} - set(own):
                answer = await found.client.request(method, path)
                assert (answer.status_code, answer.headers["allow"]) == (405, ", ".join(own)), (method, path)
            if "GET" in own and "/live/" not in path:
                for instead in ("DELETE", "POST", "PUT"):
                    headers = {"X-HTTP-Method-Override": instead, "X-Method-Override": instead}
                    await found.client.get(path, headers=headers, params={"_method": instead})
        assert await picture(bus) == before
