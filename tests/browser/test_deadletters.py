"""Dead letters in a browser: from the click to the end, and nothing before the count was shown."""

from __future__ import annotations

import re

from playwright.async_api import Browser, expect
from stage import AMOUNT, HOSTILE, ROUTE, Stage
from visitor import Visitor

from holdfast.model.states import State
from kit import publish, state, subscribe, until

MOVE = '[{{"op": "move", "from": "{}", "path": "/amount"}}]'
OPERATION = re.compile(r"/operations/[0-9a-f-]+$")


async def test_clusters_come_first_with_exact_counts(visitor: Visitor) -> None:
    await visitor.go("/deadletters")
    rows = visitor.page.locator("section").filter(has_text="By what went wrong").locator("tbody tr")
    await expect(rows).to_have_count(3)
    await expect(rows.nth(0)).to_contain_text(f"{ROUTE}")
    await expect(rows.nth(0)).to_contain_text("ConnectionError: no route to <n>")
    await rows.nth(1).get_by_role("link").first.click()
    await expect(visitor.page.locator("#items-title")).to_contain_text(f"{AMOUNT} dead letters")
    await expect(visitor.page.locator("tbody tr")).to_have_count(AMOUNT)


async def test_pages_go_on_from_a_place_and_show_each_letter_once(visitor: Visitor) -> None:
    await visitor.go("/deadletters?channel=orders")
    seen = await visitor.page.locator("tbody th.event").all_inner_texts()
    await visitor.link("Older").click()
    await expect(visitor.link("Newest")).to_be_visible()
    seen += await visitor.page.locator("tbody th.event").all_inner_texts()
    assert len(seen) == len(set(seen)) == ROUTE + AMOUNT


async def test_a_filter_that_means_nothing_says_so(visitor: Visitor) -> None:
    await visitor.go("/deadletters")
    await visitor.page.get_by_label("Error text").fill("no such error")
    await visitor.button("Filter").click()
    await expect(visitor.page.locator("main")).to_contain_text("Nothing died like that.")


async def test_a_letter_shows_every_attempt_on_its_time_line(visitor: Visitor) -> None:
    await visitor.go("/deadletters?channel=orders&kind=KeyError")
    await visitor.page.locator("tbody th.event a").first.click()
    moments = visitor.page.locator(".timeline li")
    titles = ["Published to orders", "Attempt 1 failed", "Attempt 2 failed", "Died: out of attempts"]
    await expect(moments.locator("strong")).to_have_text(titles)
    await expect(moments.nth(1)).to_contain_text("KeyError: 'amount'")


async def test_chosen_ones_are_counted_before_anything_is_asked(visitor: Visitor, theatre: Stage) -> None:
    await visitor.go("/deadletters?channel=orders")
    for index in range(2):
        await visitor.page.locator("input[name=item]").nth(index).check()
    await visitor.page.locator(".foot").get_by_role("button", name="Requeue…").click()
    await expect(visitor.dialog).to_contain_text("Requeue 2 dead letters?")
    await visitor.page.keyboard.press("Escape")
    await expect(visitor.dialog).to_have_count(0)
    assert await theatre.dead() == ROUTE + AMOUNT


async def test_all_dead_letters_need_a_word_of_their_own(visitor: Visitor, theatre: Stage) -> None:
    await visitor.go("/deadletters")
    await visitor.ask_about_all("Purge")
    whole = ROUTE + AMOUNT + HOSTILE
    await visitor.dialog.get_by_role("button", name=f"Purge {whole} dead letters").click()
    await expect(visitor.dialog).to_be_visible()  # the browser asks for the box first
    assert await visitor.send("/deadletters/do", act="purge", csrf="") == 400
    visitor.forgive(400)
    assert await theatre.dead() == ROUTE + AMOUNT


async def test_a_patch_shows_its_change_before_it_is_made(visitor: Visitor, theatre: Stage) -> None:
    await visitor.go("/deadletters?channel=orders&kind=KeyError")
    await visitor.page.locator("tbody th.event a").first.click()
    event = await visitor.page.locator("h1").inner_text()
    await visitor.link("Patch…").click()
    await visitor.dialog.get_by_label("JSON Patch").fill(MOVE.format("/nothing"))
    await visitor.dialog.get_by_role("button", name="Show the change").click()
    await expect(visitor.dialog.get_by_role("alert")).to_contain_text("the patch does not fit")
    visitor.forgive(400)
    await visitor.dialog.get_by_label("JSON Patch").fill(MOVE.format("/total"))
    await visitor.dialog.get_by_role("button", name="Show the change").click()
    await expect(visitor.dialog.locator(".removed")).to_contain_text('"total": 3.5')
    await expect(visitor.dialog.locator(".added")).to_contain_text('"amount": 3.5')
    assert await state(theatre.store, event) is State.DEAD
    await visitor.dialog.get_by_role("button", name="Patch 1 dead letter").click()
    await expect(visitor.page).to_have_url(OPERATION)
    await expect(visitor.page.locator(".headline")).to_contain_text("done")
    assert await state(theatre.store, event) is State.READY


async def test_an_operation_is_cancelled_and_goes_on(visitor: Visitor, theatre: Stage) -> None:
    await subscribe(theatre.store, "desk", channel="returns")
    await publish(theatre.store, "r-1", "r-2", "r-3", channel="returns")
    await theatre.bury("returns", "desk", 3, lambda _: KeyError("reason"))
    await visitor.go("/deadletters?channel=returns")
    await visitor.ask_about_all("Redrive")
    await visitor.dialog.get_by_label("Canary: try first").fill("1")
    await visitor.dialog.get_by_role("button", name="Redrive 3 dead letters").click()
    await expect(visitor.page.locator(".progress")).to_contain_text("Waits until its canary of 1 has ended.")
    await visitor.button("Cancel").click()
    await expect(visitor.page.locator(".outcome")).to_contain_text("cancelled by local; 1 of 3 done")
    assert await theatre.dead("returns") == 2
    async with theatre.worker("returns", "desk"):
        await visitor.button("Resume").click()
        await expect(visitor.page.locator(".headline")).to_contain_text("done")
    assert await theatre.dead("returns") == 0


async def test_a_redrive_from_the_click_to_the_end(visitor: Visitor, theatre: Stage) -> None:
    await visitor.go("/deadletters")
    async with theatre.worker():
        await visitor.page.get_by_role("link", name="Redrive…").first.click()
        await expect(visitor.dialog).to_contain_text(f"Redrive {ROUTE} dead letters?")
        await visitor.dialog.get_by_label("At most per second").fill("100")
        await visitor.dialog.get_by_label("Canary: try first").fill("5")
        await visitor.dialog.get_by_role("button", name=f"Redrive {ROUTE} dead letters").click()
        await expect(visitor.page).to_have_url(OPERATION)
        await visitor.page.evaluate("window.stayed = true")
        await expect(visitor.page.locator(".headline")).to_contain_text("done")
    await expect(visitor.page.locator(".headline")).to_contain_text("100%")
    await expect(visitor.page.locator(".outcome")).to_contain_text(f"{ROUTE} of {ROUTE} done")
    assert await visitor.page.evaluate("window.stayed")  # it was told, and did not reload
    assert await theatre.dead() < AMOUNT + 1
    await visitor.link("Operations").first.click()
    await expect(visitor.page.locator("tbody tr").first).to_contain_text("Redrive")
    await visitor.go("/audit")
    await expect(visitor.page.locator("tbody tr").first).to_contain_text(f"{ROUTE} of {ROUTE} done")
    await expect(visitor.page.locator("tbody tr").nth(1)).to_contain_text("asked")


async def test_a_canary_that_fails_stops_and_can_be_passed(visitor: Visitor, theatre: Stage) -> None:
    await visitor.go("/deadletters?channel=payments")
    await visitor.ask_about_all("Redrive")
    await visitor.dialog.get_by_label("Canary: try first").fill("1")
    await visitor.dialog.get_by_label("Within").fill("1s")
    await visitor.dialog.get_by_role("button", name=f"Redrive {HOSTILE} dead letters").click()
    await expect(visitor.page.locator(".headline")).to_contain_text("stopped")
    await expect(visitor.page.locator(".outcome")).to_contain_text("0 of 1 in the canary succeeded")
    await visitor.button("Resume past the canary").click()
    await expect(visitor.page.locator(".headline")).to_contain_text("done")
    assert await theatre.dead("payments") == 0


async def test_without_javascript_a_purge_is_a_page_that_asks(browser: Browser, theatre: Stage) -> None:
    await subscribe(theatre.store, "till", channel="refunds")
    await publish(theatre.store, "f-1", "f-2", channel="refunds")
    await theatre.bury("refunds", "till", 2, lambda _: KeyError("sum"))
    async with await browser.new_context(java_script_enabled=False) as context:
        plain = Visitor(await context.new_page(), theatre.url)
        await plain.go("/deadletters?channel=refunds")
        await plain.ask_about_all("Purge")
        await expect(plain.page.locator("h1")).to_have_text("Purge 2 dead letters?")
        await plain.button("Purge 2 dead letters").click()
        await expect(plain.page).to_have_url(OPERATION)

    async def gone() -> bool:
        return await theatre.dead("refunds") == 0

    await until(gone)
