"""Channels over REST: made, named, listed, and their logs read."""

from __future__ import annotations

import pytest
from application import application, problem

import holdfast
from holdfast.model.event import Event

V1 = "/api/v1"


async def test_a_channel_is_made_and_named_once(each: holdfast.Bus) -> None:
    async with application(each) as found:
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
    async with application(bus, local=False) as found:
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
    async with application(each) as found:
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
    async with application(bus) as found:
        problem(await found.client.get(f"{V1}/channels/orders/events", params=query), status)
        problem(await found.client.get(f"{V1}/channels/nothing/events"), 404)


async def test_a_page_of_channels_asks_the_store_for_a_hundred_of_them_at_most(bus: holdfast.Bus) -> None:
    store = bus.partitions.all[0].backend
    for n in range(130):
        await bus.create_channel(f"c{n:03}")
    await bus.subscribe("c129", "w")
    async with application(bus) as found:
        first = (await found.client.get(f"{V1}/channels?limit=1000")).json()
        assert [each["name"] for each in first["items"]] == [f"c{n:03}" for n in range(100)]
        assert first["after"] == "c099"
        rest = (await found.client.get(f"{V1}/channels?limit=1000&after=c099")).json()
        names = [name for name in await store.channels.names() if name > "c099"]
        assert [each["name"] for each in rest["items"]] == names
        assert {each["name"]: each["consumers"] for each in rest["items"]}["c129"] == ["w"]
        assert rest["after"] is None


PUBLISHED = {
    "": {"json": {"data": 1}},
    "/batch": {"json": {"events": [{"data": 1}]}},
    "/stream": {"content": b'{"data": 1}', "headers": {"Content-Type": "application/x-ndjson"}},
}


@pytest.mark.parametrize("how", PUBLISHED)
async def test_a_token_makes_no_channels_without_end(each: holdfast.Bus, how: str) -> None:
    """A new one counts with all that the token covers, whoever made them; others have room of their own."""
    await each.create_channel("a.other")
    await each.create_channel("b.other")
    async with application(each, local=False, limits={"channels": 3}) as found:
        mine, theirs = await found.bearer("producer", "a.*"), await found.bearer("producer", "b.*")

        async def published(name: str, token: dict[str, str]) -> int:
            sent = PUBLISHED[how]
            headers = {**sent.get("headers", {}), **token}  # type: ignore[dict-item]
            path = f"{V1}/channels/{name}/events{how}"
            answer = await found.client.post(path, **{**sent, "headers": headers})  # type: ignore[arg-type]
            if answer.status_code == 409:
                assert "server.limits.channels" in answer.text
            return answer.status_code

        made = [await published(f"a.{n}", mine) for n in range(4)]
        assert [status < 300 for status in made] == [True, True, False, False]
        assert made[2:] == [409, 409]
        assert await published("a.0", mine) < 300
        assert await published("a.other", mine) < 300
        assert await published("b.new", theirs) < 300
        assert await published("a.4", await found.bearer("channel", "a.4")) < 300  # made to have this one
        assert await published("a.5", await found.bearer("admin")) < 300
        assert "a.2" not in await each.partitions.all[0].backend.channels.names()


async def test_a_channel_gets_no_consumers_without_end(bus: holdfast.Bus) -> None:
    async with application(bus, local=False, limits={"consumers": 2}) as found:
        headers = await found.bearer("channel", "c")

        async def put(name: str, sent: dict[str, str]) -> int:
            answer = await found.client.put(f"{V1}/channels/c/consumers/{name}", json={}, headers=sent)
            return answer.status_code

        assert [await put(name, headers) for name in ("a", "b", "c", "a")] == [201, 201, 409, 200]
        assert await put("c", await found.bearer("admin")) == 201
