"""The door: who gets in, what they see, and forms that were sent from elsewhere."""

from __future__ import annotations

from playwright.async_api import expect
from stage import AMOUNT, ROUTE, Stage
from visitor import Visitor

OPEN = False


async def sign_in(visitor: Visitor, token: str, path: str = "/deadletters") -> None:
    await visitor.page.goto(visitor.url + path)
    await visitor.page.get_by_label("Token").fill(token)
    await visitor.button("Sign in").click()


async def test_a_token_opens_the_door_and_signing_out_closes_it(visitor: Visitor, theatre: Stage) -> None:
    token = await theatre.token("admin")
    await sign_in(visitor, token, "/deadletters?channel=orders")
    await expect(visitor.page.locator("h1")).to_have_text("Dead letters")
    assert await visitor.page.get_by_label("Channel").input_value() == "orders"
    [cookie] = await visitor.page.context.cookies()
    assert cookie.get("httpOnly")
    assert cookie.get("sameSite") == "Strict"
    await visitor.button("Sign out").click()
    await expect(visitor.page.locator("h1")).to_have_text("Sign in")
    await visitor.page.goto(visitor.url + "/deadletters")
    await expect(visitor.page.locator("h1")).to_have_text("Sign in")
    assert await visitor.page.context.cookies() == []


async def test_a_wrong_token_does_not(visitor: Visitor, theatre: Stage) -> None:
    await theatre.token("admin")
    await sign_in(visitor, f"hf_0123456789abcdef_{'A' * 43}")
    await expect(visitor.page.get_by_role("alert")).to_contain_text("The token is not valid")
    visitor.forgive(401)


async def test_whoever_is_no_longer_in_is_shown_the_door(visitor: Visitor, theatre: Stage) -> None:
    token = await theatre.token("admin")
    await sign_in(visitor, token)
    await expect(visitor.link("Redrive…").first).to_be_visible()
    await theatre.revoke(token)
    await visitor.link("Redrive…").first.click()
    await expect(visitor.page.locator("h1")).to_have_text("Sign in")


async def test_a_reader_sees_no_button_and_is_refused(visitor: Visitor, theatre: Stage) -> None:
    await sign_in(visitor, await theatre.token("reader"))
    await expect(visitor.page.locator("tbody tr").first).to_be_visible()
    assert await visitor.link("Redrive…").count() == await visitor.link("Purge…").count() == 0
    assert await visitor.page.locator("input[name=item]").count() == 0
    csrf = await visitor.csrf()
    assert await visitor.send("/deadletters/do", csrf=csrf, act="purge", channel="orders") == 403
    assert await theatre.dead() == ROUTE + AMOUNT
    visitor.forgive(403)


async def test_a_token_of_one_channel_does_nothing_elsewhere(visitor: Visitor, theatre: Stage) -> None:
    await sign_in(visitor, await theatre.token("channel", "payments"))
    await expect(visitor.page.locator("main")).to_contain_text("ledger")
    assert "billing" not in await visitor.page.locator("main").inner_text()
    await visitor.link("Purge…").first.click()
    await expect(visitor.dialog).to_contain_text("Purge 3 dead letters?")
    csrf = await visitor.csrf()
    assert await visitor.send("/deadletters/do", csrf=csrf, act="purge", channel="orders") == 403
    assert await visitor.send("/deadletters/do", csrf=csrf, act="purge", all="yes") == 403
    visitor.forgive(403)
    assert await theatre.dead() == ROUTE + AMOUNT


async def test_a_form_from_another_session_or_site_is_refused(visitor: Visitor, theatre: Stage) -> None:
    await sign_in(visitor, await theatre.token("admin"))
    await expect(visitor.page.locator("h1")).to_have_text("Dead letters")
    for forged in ("", "0" * 64):
        assert await visitor.send("/deadletters/do", csrf=forged, act="purge", channel="orders") == 403
    csrf = await visitor.csrf()
    elsewhere = await visitor.page.context.new_page()
    fields = {"csrf": csrf, "act": "purge", "channel": "orders"}
    inputs = "".join(f'<input name="{name}" value="{value}">' for name, value in fields.items())
    form = f'<form method="post" action="{visitor.url}/deadletters/do">{inputs}<button>Go</button></form>'
    await elsewhere.set_content(form)
    async with elsewhere.expect_navigation() as leaving:
        await elsewhere.get_by_role("button").click()
    answer = await leaving.value
    assert answer is not None
    assert answer.status == 403
    visitor.forgive(403)
    assert await theatre.dead() == ROUTE + AMOUNT


async def test_a_link_signs_in_once_and_says_so_the_second_time(visitor: Visitor, theatre: Stage) -> None:
    link = await theatre.link()
    await visitor.go(link)
    await visitor.button("Sign in").click()
    await expect(visitor.page.locator("h1")).to_have_text("Overview")
    assert "link" not in visitor.page.url
    await visitor.button("Sign out").click()
    await visitor.go(link)
    await visitor.button("Sign in").click()
    await expect(visitor.page.get_by_role("alert")).to_contain_text("it was used before")
    visitor.forgive(401)
    assert await visitor.barriers() == []
