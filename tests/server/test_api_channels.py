"""Channels over REST: made, named, listed, and their logs read."""

from __future__ import annotations

import pytest
from house import house, problem

import holdfast
from holdfast.model.event import Event

V1 = "/api/v1"


async def test_a_channel_is_made_and_named_once(each: holdfast.Bus) -> None:
    async with house(each) as found:
        problem(await found.client.get(f"{V1}/channels/orders"), 404)
        made = await found.client.put(f"{V1}/channels/orders", json={"display_name": "Orders"})
        again = await found.client.put(f"{V1}/channels/orders", json={"display_name": "All orders"})
        assert (made.status_code, again.status_code) == (201, 200)
        await each.subscribe("orders", "billing")
        await each.publish_many("orders", [Event({"n": n}) for n in range(3)])
        shown = (await found.client.get(f"{V1}/channels/orders")).json()
        assert shown["bytes"] > 0
        assert {**shown, "bytes": 0} == {
            "name": "orders",
            "display_name": "All orders",
            "events": 3,
            "bytes": 0,
            "consumers": ["billing"],
        }


async def test_lists_go_page_by_page_and_show_what_the_token_covers(bus: holdfast.Bus) -> None:
    names = [f"orders.{letter}" for letter in "abcde"]
    for name in [*names, "secret"]:
        await bus.create_channel(name)
    async with house(bus, local=False) as found:
        headers, seen, after = await found.bearer("reader", "orders.>"), [], None
        while True:
            query = {"limit": 2} | ({"after": after} if after else {})
            page = (await found.client.get(f"{V1}/channels", params=query, headers=headers)).json()
            seen += [each["name"] for each in page["items"]]
            if (after := page["after"]) is None:
                break
        assert seen == names
        worker = await found.bearer("consumer", "orders.a", "billing")
        assert (await found.client.get(f"{V1}/channels", headers=worker)).json()["items"] == []


async def test_a_log_is_read_from_where_the_reader_was(each: holdfast.Bus) -> None:
    await each.publish_many("orders", [Event({"n": n}, f"e-{n}") for n in range(5)])
    async with house(each) as found:
        seen, after = [], None
        for _ in range(4):
            query = {"limit": 2} | ({"after": after} if after else {})
            page = (await found.client.get(f"{V1}/channels/orders/events", params=query)).json()
            seen += [entry["event"]["data"]["n"] for entry in page["items"]]
            after = page["after"]
        assert seen == [0, 1, 2, 3, 4]
        await each.publish("orders", b"\xff", id="bytes")
        answer = await found.client.get(f"{V1}/channels/orders/events", params={"after": after})
        [entry] = answer.json()["items"]
        assert (entry["event"]["data_base64"], entry["event"]["id"]) == ("/w==", "bytes")


@pytest.mark.parametrize(
    ("query", "status"), [({"after": "nowhere"}, 400), ({"partition": 1}, 400), ({"limit": 0}, 422)]
)
async def test_what_cannot_be_read_is_told(bus: holdfast.Bus, query: dict[str, str], status: int) -> None:
    await bus.create_channel("orders")
    async with house(bus) as found:
        problem(await found.client.get(f"{V1}/channels/orders/events", params=query), status)
        problem(await found.client.get(f"{V1}/channels/nothing/events"), 404)
