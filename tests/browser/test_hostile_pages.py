"""Hostile payloads: whatever an event or an error says, it is text."""

from __future__ import annotations

from playwright.async_api import expect
from stage import IMAGE, SCRIPT
from visitor import Visitor


async def test_a_payload_is_shown_as_text(visitor: Visitor) -> None:
    await visitor.go("/deadletters?channel=payments")
    await visitor.link("pay-<b>1</b>").click()
    await expect(visitor.page.locator("h1")).to_have_text("pay-<b>1</b>")
    data = await visitor.page.locator("pre").inner_text()
    assert SCRIPT in data
    assert IMAGE.replace('"', '\\"') in data
    assert "a\\u202ebc\\u202c" in data  # a mark that turns the direction is written out
    main = await visitor.page.locator("main").inner_text()
    assert f"x-note\n{IMAGE}" in main
    assert SCRIPT in await visitor.page.locator(".timeline").inner_text()
    assert await visitor.page.locator("main script, main img").count() == 0
    assert await visitor.page.evaluate("window.hurt") is None


async def test_it_stays_text_in_lists_dialogs_and_operations(visitor: Visitor) -> None:
    await visitor.go("/deadletters?channel=payments")
    assert SCRIPT in await visitor.page.locator("tbody tr").last.inner_text()
    await visitor.page.get_by_role("link", name="Requeue…").first.click()
    await expect(visitor.dialog).to_contain_text("pay-<b>1</b>")
    await visitor.go("/deadletters?channel=payments&text=" + "%3Cscript%3E%22%3E%3Cimg%20src=x%3E")
    assert await visitor.page.get_by_label("Error text").input_value() == '<script>"><img src=x>'
    await visitor.go("/?notice=%3Cscript%3Ewindow.hurt=1%3C/script%3E")
    assert await visitor.page.locator("main script, main img").count() == 0
    assert await visitor.page.evaluate("window.hurt") is None


async def test_a_megabyte_is_cut_unless_all_of_it_is_wanted(visitor: Visitor) -> None:
    await visitor.go("/deadletters?channel=payments")
    await visitor.link("pay-large").click()
    assert len(await visitor.page.locator("pre").inner_text()) < 100_000
    await visitor.link("Show all of it").click()
    await visitor.page.wait_for_url("**whole=true*", wait_until="load")
    await expect(visitor.link("Show all of it")).to_have_count(0)
    assert len(await visitor.page.locator("pre").text_content() or "") > 1_000_000
    assert await visitor.sideways() <= 0


async def test_bytes_are_shown_in_hexadecimal(visitor: Visitor) -> None:
    await visitor.go("/deadletters?channel=payments")
    await visitor.link("pay-bytes").click()
    await expect(visitor.page.locator("pre")).to_contain_text("000000  00 fe")
