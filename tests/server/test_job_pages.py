"""The pages that cancel a job: what they show before it, and what comes of it."""

from __future__ import annotations

import re
from html import unescape

import pytest
from application import application

import holdfast
from holdfast.model.states import State
from kit import CHANNEL, CONSUMER, claim_one, complete, publish, record, subscribe

HERE = {"Origin": "http://localhost"}
HIDDEN = re.compile(r'<input type="hidden" name="([^"]*)" value="([^"]*)">')
PAGE = f"/channels/{CHANNEL}/consumers/{CONSUMER}"


@pytest.mark.parametrize("leased", [True, False])
async def test_a_job_is_cancelled_after_a_look_at_it(bus: holdfast.Bus, leased: bool) -> None:
    store = bus.partitions.all[0].backend
    await subscribe(store)
    await publish(store, "<a>")
    if leased:
        await claim_one(store)
    async with application(bus) as found:
        assert f'action="{PAGE}/cancel"' in (await found.client.get(PAGE)).text
        shown = await found.client.get(f"{PAGE}/cancel", params={"id": "<a>"})
        assert ("A worker has it." in shown.text) == leased
        assert ("checked required" in shown.text) == leased
        assert (await record(store, "<a>")).state is not State.CANCELLED
        form = shown.text.partition(f'action="{PAGE}/cancel"')[2]
        fields = {unescape(name): unescape(value) for name, value in HIDDEN.findall(form)}
        fields |= {"reason": "no more"} | ({"running": "true"} if leased else {})
        answer = await found.client.post(f"{PAGE}/cancel", data=fields, headers=HERE)
        assert (answer.status_code, answer.headers["location"]) == (303, f"{PAGE}?notice=cancelled")
        kept = await record(store, "<a>")
        assert (kept.state, kept.cancelled_by, kept.reason) == (State.CANCELLED, "local", "no more")
        again = await found.client.post(f"{PAGE}/cancel", data=fields, headers=HERE)
        assert "Nothing was cancelled" in (await found.client.get(again.headers["location"])).text
        assert (await found.client.post(f"{PAGE}/cancel", data=fields)).status_code == 403, "from elsewhere"


async def test_what_has_ended_or_was_never_there_is_said(bus: holdfast.Bus) -> None:
    store = bus.partitions.all[0].backend
    await subscribe(store)
    await publish(store, "a")
    assert await complete(store, await claim_one(store))
    async with application(bus) as found:
        shown = await found.client.get(f"{PAGE}/cancel", params={"id": "a"})
        assert "It is done: there is nothing to cancel." in shown.text
        assert 'method="post" action="/channels' not in shown.text
        assert (await found.client.get(f"{PAGE}/cancel", params={"id": "b"})).status_code == 404
        assert (await found.client.get(f"{PAGE}/cancel")).status_code == 422
