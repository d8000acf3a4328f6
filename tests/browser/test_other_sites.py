"""Pages of other sites, in the browser of somebody who is signed in here."""

from __future__ import annotations

import pytest
from playwright.async_api import BrowserContext, Page, Route, expect
from stage import Stage
from test_login import sign_in
from visitor import Visitor

OPEN = False
OTHERS = ["http://127.0.0.1:1", "http://evil.example"]
"""Another port of this host, to which the browser sends our cookies too, and another site."""
PROBE = """async (url) => {
  const told = (make) => new Promise((done) => {
    const made = make();
    made.onload = () => done("loaded " + (made.naturalWidth ?? ""));
    made.onerror = () => done("failed");
    document.body.append(made);
  });
  const asked = (options) => fetch(url, options).then((answer) => answer.type + answer.status, String);
  return [
    await asked({mode: "no-cors", credentials: "include"}),
    await asked({mode: "cors", credentials: "include"}),
    await told(() => Object.assign(new Image(), {src: url})),
    await told(() => Object.assign(document.createElement("script"), {src: url})),
    await told(() => Object.assign(document.createElement("link"), {rel: "stylesheet", href: url})),
    await told(() => Object.assign(document.createElement("object"), {data: url})),
  ];
}"""
ACT = """async (url) => {
  const body = '{"data": 1}\\n';
  const sent = {method: "POST", mode: "no-cors", credentials: "include", body};
  const post = (headers) => fetch(url, {...sent, headers});
  await post({"Content-Type": "text/plain"}).catch(() => 0);
  await post({}).catch(() => 0);
  await fetch(url, {method: "POST", headers: {"Content-Type": "application/x-ndjson"}, body}).catch(() => 0);
  navigator.sendBeacon(url, body);
  const form = document.createElement("form");
  Object.assign(form, {method: "post", action: url, enctype: "text/plain"});
  form.append(Object.assign(document.createElement("input"), {name: '{"data": 1, "x": "', value: '"}'}));
  document.body.append(form);
  form.submit();
}"""


async def elsewhere(context: BrowserContext, origin: str) -> Page:
    """An empty page of another site."""

    async def empty(route: Route) -> None:
        await route.fulfill(body="<!doctype html><body>elsewhere", content_type="text/html")

    page = await context.new_page()
    await page.route(f"{origin}/**", empty)
    await page.goto(f"{origin}/page")
    return page


@pytest.mark.parametrize("origin", OTHERS)
async def test_another_site_cannot_tell_which_channels_there_are(
    visitor: Visitor, theatre: Stage, origin: str
) -> None:
    await sign_in(visitor, await theatre.token("admin"))
    await expect(visitor.page.locator("h1")).to_have_text("Dead letters")
    other = await elsewhere(visitor.page.context, origin)
    for path in ("/channels/{}", "/live/channels/{}", "/api/v1/channels/{}"):
        known, unknown = [
            await other.evaluate(PROBE, visitor.url + path.format(name)) for name in ("orders", "nonesuch")
        ]
        assert known == unknown


@pytest.mark.parametrize("origin", OTHERS)
async def test_another_site_publishes_nothing(visitor: Visitor, theatre: Stage, origin: str) -> None:
    await sign_in(visitor, await theatre.token("admin"))
    await expect(visitor.page.locator("h1")).to_have_text("Dead letters")
    before = await theatre.store.retention.size("orders")
    other = await elsewhere(visitor.page.context, origin)
    async with other.expect_navigation():
        await other.evaluate(ACT, f"{visitor.url}/api/v1/channels/orders/events/stream")
    assert "of another site" in await other.locator("body").inner_text()
    assert await theatre.store.retention.size("orders") == before


async def test_a_link_from_elsewhere_leads_here(visitor: Visitor, theatre: Stage) -> None:
    await sign_in(visitor, await theatre.token("admin"))
    await expect(visitor.page.locator("h1")).to_have_text("Dead letters")
    other = await elsewhere(visitor.page.context, OTHERS[0])
    await other.evaluate("(url) => { location.href = url; }", f"{visitor.url}/channels/orders")
    await expect(other.locator("h1")).to_have_text("orders")


async def test_a_live_page_leads_to_the_door_when_its_token_is_revoked(
    visitor: Visitor, theatre: Stage
) -> None:
    token = await theatre.token("admin")
    await sign_in(visitor, token, "/")
    await expect(visitor.page.locator("h1")).to_have_text("Overview")
    await theatre.revoke(token)  # before its stream has begun, or after it
    await expect(visitor.page.locator("h1")).to_have_text("Sign in")
    visitor.forgive(401)
    visitor.complaints = [each for each in visitor.complaints if "htmx:sse:error" not in each]


async def test_a_live_page_whose_stream_is_refused_keeps_what_it_shows(
    visitor: Visitor, theatre: Stage
) -> None:
    await sign_in(visitor, await theatre.token("admin"))
    await expect(visitor.page.locator("h1")).to_have_text("Dead letters")

    async def full(route: Route) -> None:
        await route.fulfill(status=503, body='{"detail": "full"}', content_type="application/problem+json")

    await visitor.page.route("**/live/overview", full)
    await visitor.page.goto(visitor.url + "/")
    await expect(visitor.page.locator("body.stale")).to_have_count(1)
    await expect(visitor.page.locator("#live h2").first).to_be_visible()
    visitor.forgive(503)
