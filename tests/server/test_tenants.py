"""Tenants: no route tells one tenant about another, or lets it change anything there."""

from __future__ import annotations

from datetime import timedelta

import pytest
from application import Application, application, problem
from world import CHANNEL, CONSUMER, NEIGHBOUR, ask, asked, picture, settle, shown

import holdfast

STRANGERS: dict[str, tuple[str, ...]] = {
    "channel": ("channel", "beta"),
    "consumer": ("consumer", "beta", CONSUMER),
    "producer": ("producer", "beta.>"),
    "producer of a longer name": ("producer", f"{CHANNEL}.>"),
    "reader": ("reader", "beta"),
    "neighbour": ("consumer", CHANNEL, NEIGHBOUR),
    "revoked": ("admin",),
    "expired": ("admin",),
}
REFUSED = (401, 403, 404)


async def headers_of(found: Application, kind: str) -> dict[str, str]:
    """The header of a stranger."""
    if kind == "nobody":
        return {}
    if kind == "forged":
        return {"Authorization": f"Bearer hf_0123456789abcdef_{'A' * 43}"}
    lifetime = timedelta(seconds=1) if kind == "expired" else None
    text = await found.token(*STRANGERS[kind], lifetime=lifetime)
    if kind == "revoked":
        await found.tokens.revoke(text.split("_")[1])
    if kind == "expired":
        await found.system.partitions.all[0].backend.advance(timedelta(seconds=1))
    return {"Authorization": f"Bearer {text}"}


@pytest.mark.parametrize("kind", [*STRANGERS, "nobody", "forged"])
async def test_a_stranger_gets_and_changes_nothing_by_any_route(bus: holdfast.Bus, kind: str) -> None:
    world = await settle(bus)
    async with application(bus, local=False) as found:
        await found.token("admin")
        headers = await headers_of(found, kind)
        before = await picture(bus)
        for each in asked(found):
            for answer in await ask(found, world, each, headers):
                if each.need.filtered and each.need.verb == "read" and answer.status_code == 200:
                    hidden = CONSUMER if kind == "neighbour" else "alpha-"
                    assert hidden not in shown(answer), f"{each}: {answer.text}"
                else:
                    assert answer.status_code in REFUSED, f"{each}: {answer.status_code} {answer.text}"
            assert await picture(bus) == before, each


async def test_the_tenant_itself_is_let_in_by_every_route(bus: holdfast.Bus) -> None:
    """The control: the same calls with the right token are not refused."""
    world = await settle(bus)
    async with application(bus, local=False) as found:
        headers = await found.bearer("admin")
        for each in asked(found):
            for answer in await ask(found, world, each, headers):
                assert answer.status_code not in (401, 403, 422), f"{each}: {answer.text}"


async def test_a_route_that_decides_for_itself_is_asked_about_the_tenant(bus: holdfast.Bus) -> None:
    """What the guard leaves to the route is only tested where its body is about the tenant."""
    world = await settle(bus)
    async with application(bus) as found:
        left = {each.operation for each in asked(found) if each.need.filtered and each.need.verb != "read"}
    assert left <= world.bodies.keys()


async def test_to_read_here_and_operate_there_is_not_to_operate_here(bus: holdfast.Bus) -> None:
    """Two tokens allow what either of them allows, and no more."""
    world = await settle(bus)
    async with application(bus, local=False) as found:
        headers = await found.bearer("channel", "beta")
        headers["X-Broker-Channel-Token"] = await found.token("reader")
        before = await picture(bus)
        for each in asked(found):
            if each.need.verb != "read":
                for answer in await ask(found, world, each, headers):
                    assert answer.status_code in REFUSED, f"{each}: {answer.text}"
        assert await picture(bus) == before


async def test_a_consumer_cannot_send_its_dead_letters_to_another_tenant(bus: holdfast.Bus) -> None:
    await settle(bus)
    async with application(bus, local=False) as found:
        headers = await found.bearer("channel", "beta")
        made = await found.client.put("/api/v1/channels/beta/consumers/x", json={}, headers=headers)
        assert made.status_code == 201
        before = await picture(bus)
        answer = await found.client.put(
            "/api/v1/channels/beta/consumers/x", json={"dead_letter": CHANNEL}, headers=headers
        )
        problem(answer, 403)
        assert await picture(bus) == before


async def test_a_pair_of_one_tenant_does_not_open_another(bus: holdfast.Bus) -> None:
    world = await settle(bus)
    async with application(bus, local=False) as found:
        mine = {
            "X-Broker-Channel-Token": await found.token("channel", "beta"),
            "X-Broker-Consumer-Token": await found.token("consumer", "beta", CONSUMER),
        }
        before = await picture(bus)
        pairs = [each for each in asked(found) if each.need.pair]
        assert len(pairs) == 4
        for each in pairs:
            assert [answer.status_code for answer in await ask(found, world, each, mine)] == [403]
        half = {**mine, "X-Broker-Channel-Token": await found.token("channel", CHANNEL)}
        before = await picture(bus)
        for each in pairs:
            assert [answer.status_code for answer in await ask(found, world, each, half)] == [403]
        assert await picture(bus) == before
