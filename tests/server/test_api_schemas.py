"""Schemas of channels over REST and on the channel's page."""

from __future__ import annotations

from typing import Any

import pytest
from application import application, problem

import holdfast

SCHEMA = "/api/v1/channels/orders/schema"
ORDER = {"type": "object", "properties": {"total": {"type": "integer"}}, "required": ["total"]}
WIDER = {"type": "object", "properties": {"total": {"type": "number"}, "note": {"type": "string"}}}


async def test_a_schema_is_declared_shown_and_removed(each: holdfast.Bus) -> None:
    async with application(each) as found:
        problem(await found.client.get(SCHEMA), 404)
        made = await found.client.put(SCHEMA, json={"schema": ORDER})
        assert (made.status_code, made.json()) == (200, (await found.client.get(SCHEMA)).json())
        assert (made.json()["schema"], made.json()["version"]) == (ORDER, 1)
        assert (await found.client.put(SCHEMA, json={"schema": WIDER})).json()["version"] == 2
        refused = problem(await found.client.put(SCHEMA, json={"schema": ORDER}), 409)
        assert refused["type"] == "urn:holdfast:problem:incompatible"
        assert refused["reasons"] == ["total: is required now", "total: was number, is integer now"]
        forced = await found.client.put(SCHEMA, json={"schema": ORDER, "force": True})
        assert forced.json()["version"] == 3
        assert (await found.client.delete(SCHEMA)).status_code == 204
        problem(await found.client.delete(SCHEMA), 404)
        entries = await found.system.audit.latest(10)
    audit = [entry.event.json() for entry in entries]
    told = [(one["action"], one["target"], one["outcome"]) for one in audit if "schema" in one["action"]]
    assert told == [
        ("remove schema", "orders", "done"),
        ("put schema", "orders", "version 3 by force"),
        ("put schema", "orders", "version 2"),
        ("put schema", "orders", "version 1"),
    ]


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({}, 422),
        ({"schema": []}, 422),
        ({"schema": {"type": "text"}}, 400),
        ({"schema": {"minimum": "x"}}, 400),
        ({"schema": {"description": "x" * 200_000}}, 413),
        ({"schema": ORDER, "force": 1}, 422),
        ({"schema": {}, "more": 1}, 422),
    ],
)
async def test_what_is_no_schema_is_refused(bus: holdfast.Bus, body: Any, status: int) -> None:
    async with application(bus) as found:
        problem(await found.client.put(SCHEMA, json=body), status)
        assert (await found.client.get("/api/v1/channels")).json()["items"] == []


async def test_a_type_of_many_fields_is_taken(bus: holdfast.Bus) -> None:
    wide = {"properties": {f"f{n}": {"type": "string"} for n in range(1_000)}}
    async with application(bus) as found:
        assert (await found.client.put(SCHEMA, json={"schema": wide})).status_code == 200
        page = (await found.client.get("/channels/orders")).text
    assert "800 more fields are not shown." in page


async def test_the_page_shows_it_as_text_and_nothing_else(bus: holdfast.Bus) -> None:
    hostile = "</pre><script>alert(1)</script>"
    async with application(bus) as found:
        await bus.create_channel("orders")
        assert "No schema was declared." in (await found.client.get("/channels/orders")).text
        odd = {"properties": {hostile: {"enum": [hostile]}, "b": {"title": hostile, "type": "object"}}}
        await bus.declare("orders", odd)
        page = (await found.client.get("/channels/orders")).text
    assert "Version 1" in page
    assert "&lt;script&gt;" in page
    assert "<script>alert" not in page


async def test_a_schema_that_another_client_spoilt_is_named(bus: holdfast.Bus) -> None:
    async with application(bus) as found:
        await bus.create_channel("orders")
        await bus.partitions.all[0].backend.records.put("gbe.state.schemas.orders", {"schema": "{"}, 0)
        assert "gbe.state.schemas.orders" in problem(await found.client.get(SCHEMA), 400)["detail"]
        assert (await found.client.get("/channels/orders")).status_code == 200
        assert (await found.client.put(SCHEMA, json={"schema": {}, "force": True})).status_code == 200
