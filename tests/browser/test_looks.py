"""Every page: on a wide and a narrow screen, by day and by night, for everybody, without a complaint."""

from __future__ import annotations

import asyncio
from typing import Literal

import pytest
from playwright.async_api import Browser, Route, ViewportSize, expect
from stage import Stage
from visitor import Visitor

from holdfast.deadletters.operation import Request
from holdfast.deadletters.operations import Operations
from holdfast.deadletters.service import DeadLetters
from holdfast.model.event import Event

Colours = Literal["light", "dark"]
SCREENS: dict[str, tuple[int, Colours]] = {
    "wide by day": (1280, "light"),
    "phone at night": (390, "dark"),
}
PAGES = (
    "/",
    "/channels",
    "/channels/orders",
    "/channels/orders/consumers/billing",
    "/channels/orders/consumers/billing/cancel?id=o-1",
    "/pipeline",
    "/query",
    "/query?example=failures",
    "/trace",
    "/trace?id=o-1&channel=orders",
    "/deadletters",
    "/deadletters?channel=orders&kind=KeyError",
    "/deadletters/ask?act=redrive&channel=orders",
    "/deadletters/ask?act=patch&channel=orders",
    "/deadletters/ask?act=purge",
    "/operations",
    "/audit",
    "/login",
)


async def paths(theatre: Stage) -> list[str]:
    """All pages, those of one thing too."""
    letters = DeadLetters(theatre.bus, "gbe")
    operations = Operations(letters)
    found = await letters.find(None, None, 100)
    hostile = next(each.id for each in found.items if each.event_id.startswith("pay-<"))
    done = await operations.latest(1)
    if not done:
        done = [await operations.ask(Request("requeue", items=(found.items[-1].id,)), "tester")]
    return [*PAGES, f"/deadletters/{hostile}", f"/operations/{done[0].id}"]


@pytest.mark.parametrize("screen", SCREENS)
async def test_every_page_is_for_everybody(browser: Browser, theatre: Stage, screen: str) -> None:
    width, colours = SCREENS[screen]
    view: ViewportSize = {"width": width, "height": 800}
    async with await browser.new_context(viewport=view, color_scheme=colours) as context:
        visitor = await Visitor.enter(context, theatre.url)
        for path in await paths(theatre):
            await visitor.go(path)
            assert await visitor.sideways() <= 0, path
            assert await visitor.cut_off() == [], path
            assert await visitor.barriers() == [], path
        await visitor.go("/deadletters")
        await visitor.page.get_by_role("link", name="Redrive…").first.click()
        await expect(visitor.dialog).to_be_visible()
        assert await visitor.sideways() <= 0
        assert await visitor.barriers() == []
        assert visitor.complaints == []


async def test_the_overview_is_told_what_happens_without_a_reload(visitor: Visitor, theatre: Stage) -> None:
    await visitor.go("/")
    await visitor.page.evaluate("window.stayed = true")
    await asyncio.gather(
        theatre.store.log.publish("fresh.channel", [Event({"n": 1}, "fresh-1")]),
        expect(visitor.page.get_by_role("link", name="fresh.channel")).to_be_visible(),
    )
    assert await visitor.page.evaluate("window.stayed")


async def test_a_live_page_begins_though_its_extension_comes_late(visitor: Visitor) -> None:
    async def late(route: Route) -> None:
        await asyncio.sleep(0.3)
        await route.continue_()

    await visitor.page.route("**/hx-sse.min.js", late)
    async with visitor.page.expect_request("**/live/overview"):
        await visitor.go("/")


async def test_the_list_of_operations_is_told_too(visitor: Visitor, theatre: Stage) -> None:
    await visitor.go("/operations")
    before = await visitor.page.locator("tbody tr").count()
    letters = DeadLetters(theatre.bus, "gbe")
    item = (await letters.find(None, None, 1)).items[0].id
    await Operations(letters).ask(Request("requeue", items=(item,)), "tester")
    await expect(visitor.page.locator("tbody tr")).to_have_count(before + 1)


async def test_the_keyboard_goes_everywhere(visitor: Visitor) -> None:
    await visitor.go("/")
    await visitor.page.keyboard.press("Tab")
    await expect(visitor.link("Skip to content")).to_be_focused()
    await visitor.page.keyboard.press("g")
    await visitor.page.keyboard.press("d")
    await expect(visitor.page.locator("h1")).to_have_text("Dead letters")
    await visitor.page.wait_for_load_state()
    await visitor.page.keyboard.press("/")
    await expect(visitor.page.get_by_label("Error text")).to_be_focused()
