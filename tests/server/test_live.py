"""Live pages: who may watch, for how long, and how much there is to see."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest
from application import application
from running import Running, running

import holdfast
from holdfast.model.errors import HoldfastError
from holdfast.model.scopes import scope_of
from holdfast.server.auth.tokens import Tokens
from holdfast.server.http import HttpService
from holdfast.server.pages.channels import SHOWN
from kit import CHANNEL, CONSUMER, publish, subscribe, until

OVERVIEW = "/live/overview"


async def sign_in(system: Running, bus: holdfast.Bus) -> str:
    """Begin a session with a new token, as a browser would; returns the token's id."""
    issued = await Tokens(bus, "gbe").create(scope_of("admin", None, None))
    base = system.client.base_url
    answer = await system.client.post(
        "/login", data={"token": issued.text}, headers={"Origin": f"{base.scheme}://{base.netloc.decode()}"}
    )
    assert answer.status_code == 303, answer.text
    return issued.token.id


@asynccontextmanager
async def watching(client: httpx.AsyncClient, path: str = OVERVIEW) -> AsyncIterator[AsyncIterator[str]]:
    """The lines of a live page, after the first."""
    async with client.stream("GET", path) as answer:
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        lines = answer.aiter_lines()
        assert (await anext(lines)).startswith("data: ")
        yield lines


def quiet(caplog: pytest.LogCaptureFixture) -> bool:
    return not [each for each in caplog.records if each.levelno >= logging.ERROR or each.exc_info]


@pytest.mark.parametrize("path", ["/live/channels/nonesuch", "/live/operations/01234567"])
async def test_what_is_not_there_is_a_404(
    bus: holdfast.Bus, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The stream had begun when it was looked for, and the error was a traceback in the log."""
    async with application(bus) as found:
        await found.sign_in("admin")
        assert (await found.client.get(path)).status_code in (404, 422)
    assert quiet(caplog)


@pytest.mark.parametrize("path", ["/channels/orders", "/live/channels/orders"])
async def test_a_channel_has_its_page_at_once(bus: holdfast.Bus, path: str) -> None:
    """There was none before the next snapshot, ten seconds later if nobody looked at a page."""
    async with running(bus) as system:
        await sign_in(system, bus)
        assert (await system.client.get(path)).status_code == 404
        await bus.publish("orders", {})
        async with system.client.stream("GET", path) as answer:
            assert answer.status_code == 200


async def test_a_live_page_ends_with_its_token(bus: holdfast.Bus, caplog: pytest.LogCaptureFixture) -> None:
    async with running(bus) as system:
        token = await sign_in(system, bus)
        async with watching(system.client) as lines:
            await Tokens(bus, "gbe").revoke(token)
            async for _ in lines:  # until it ends
                continue
        assert (await system.client.get(OVERVIEW)).status_code == 401
    assert quiet(caplog)


async def test_a_live_page_of_a_channel_that_goes_away_ends(
    bus: holdfast.Bus, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with anything else that goes wrong between two looks."""
    await publish(bus.partitions.all[0].backend, "a")
    async with running(bus) as system:
        await sign_in(system, bus)
        async with watching(system.client, f"/live/channels/{CHANNEL}") as lines:

            def gone(*_: object) -> str:
                raise HoldfastError("it is gone")

            monkeypatch.setattr("holdfast.server.pages.channels._channel", gone)
            async for _ in lines:
                continue
    assert quiet(caplog)


async def test_a_caller_has_so_many_live_pages(bus: holdfast.Bus) -> None:
    limits = {"live_per_caller": 2, "live": 3}
    async with running(bus, server={"port": 0, "limits": limits}) as system:
        base = system.client.base_url
        await sign_in(system, bus)
        async with httpx.AsyncClient(base_url=base) as second, watching(system.client):
            async with watching(system.client):
                refused = await system.client.get(OVERVIEW)
                assert refused.status_code == 429
                assert "2 live pages of this caller" in refused.json()["detail"]
                await sign_in(Running(system.supervisor, second), bus)
                async with watching(second):
                    refused = await second.get(OVERVIEW)
                    assert refused.status_code == 503

            async def free() -> bool:
                async with system.client.stream("GET", OVERVIEW) as answer:
                    return answer.status_code == 200

            await until(free)


async def test_a_stop_ends_live_pages_at_once(bus: holdfast.Bus, caplog: pytest.LogCaptureFixture) -> None:
    """They are complete then: nothing was cancelled."""
    async with running(bus) as system:
        await sign_in(system, bus)
        [http] = [
            each.service for each in system.supervisor.services if isinstance(each.service, HttpService)
        ]
        async with watching(system.client) as lines:
            system.supervisor.stopping = True
            for told in system.supervisor.on_stop:
                told()
            async for _ in lines:
                continue
        assert http.server is not None
    assert quiet(caplog)


async def test_a_page_does_not_grow_with_the_system(bus: holdfast.Bus) -> None:
    store = bus.partitions.all[0].backend
    async with application(bus) as found:
        await found.sign_in("admin")
        sizes: list[int] = []
        for numbers in (range(SHOWN + 10), range(SHOWN + 10, SHOWN + 110)):
            for number in numbers:
                await subscribe(store, channel=f"channel-{number:04}")
                await store.channels.set_paused(f"channel-{number:04}", CONSUMER, True)
            await found.app.state.snapshots.take()
            pages = [(await found.client.get(path)).text for path in ("/", "/channels")]
            sizes.append(sum(map(len, pages)))
        assert "110 more are not shown" in pages[1]
        assert sizes[1] < sizes[0] * 1.05
