"""Schedules over REST and on their pages: previewed, saved, paused, run and removed."""

from __future__ import annotations

import re
from typing import Any

import pytest
from application import Application, application, problem

import holdfast

CHANNEL = "reports"
PATH = f"/api/v1/channels/{CHANNEL}/schedules/nightly"
PAGE = f"/channels/{CHANNEL}/schedules/nightly"
BODY: dict[str, Any] = {"cron": "0 3 * * *", "tz": "Europe/Berlin", "data": {"n": 1}, "headers": {"a": "b"}}
FORM = {"name": "nightly", "channel": CHANNEL, "cron": "0 3 * * *", "tz": "Europe/Berlin", "data": '{"n": 1}'}


async def test_its_life_over_rest(bus: holdfast.Bus) -> None:
    async with application(bus) as found:
        client = found.client
        shown = (await client.put(PATH, json=BODY, params={"dry_run": True})).json()
        assert len(shown["upcoming"]) == 10
        problem(await client.get(PATH), 404)
        made = await client.put(PATH, json=BODY)
        assert (made.status_code, made.json()["upcoming"]) == (201, shown["upcoming"])
        again = await client.put(PATH, json=BODY)
        assert (again.status_code, again.json()) == (200, made.json())
        assert (await client.get(PATH)).json() == made.json()
        assert made.json()["data"] == {"n": 1}
        paused = (await client.post(f"{PATH}/pause")).json()
        assert (paused["paused"], paused["upcoming"], paused["due"]) == (True, [], None)
        assert (await client.post(f"{PATH}/resume")).json() == made.json()
        run = await client.post(f"{PATH}/run", json={"id": "r"})
        repeat = await client.post(f"{PATH}/run", json={"id": "r"})
        assert (run.status_code, repeat.status_code) == (201, 200)
        assert run.json()["position"] == repeat.json()["position"]
        assert (await client.delete(PATH)).status_code == 204
        for answer in (await client.delete(PATH), await client.post(f"{PATH}/pause")):
            problem(answer, 404)
        actions = [entry.event.json()["action"] for entry in await bus.read("gbe.events.system.audit")]
        assert set(actions) == {f"{verb} schedule" for verb in ("put", "pause", "resume", "run", "remove")}


async def test_bytes_are_given_and_shown_in_base64(bus: holdfast.Bus) -> None:
    async with application(bus) as found:
        made = (await found.client.put(PATH, json={"every": "1h", "data_base64": "AP8="})).json()
        assert made["data_base64"] == "AP8="
        assert (await bus.schedules())[0].content.data == b"\x00\xff"


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"cron": "0 0 30 2 *"}, 400),
        ({"every": "1h", "cron": "0 3 * * *"}, 400),
        ({"every": "1h", "tz": "UTC"}, 400),
        ({"every": "1h", "headers": {"holdfast-tick": "x"}}, 400),
        ({"every": "1h", "data": 1, "data_base64": "AA=="}, 400),
        ({"every": "1h", "data": "x" * 70_000}, 413),
        ({"every": "1h", "missed": "some"}, 422),
        ({"every": "1h", "max_missed": 10_001}, 422),
        ({"every": "1h", "unknown": 1}, 422),
    ],
)
async def test_what_cannot_be_a_schedule_is_a_problem(
    bus: holdfast.Bus, body: dict[str, Any], status: int
) -> None:
    async with application(bus) as found:
        problem(await found.client.put(PATH, json=body), status)
        assert await bus.schedules() == []


async def test_lists_come_in_pages_of_what_the_caller_may_see(bus: holdfast.Bus) -> None:
    for channel in ("a", "b", "c"):
        for name in ("x", "y"):
            await bus.schedule(name, channel, every="1h")
    async with application(bus, local=False) as found:
        headers = await found.bearer("reader", "b")
        [*mine] = (await found.client.get("/api/v1/schedules", headers=headers)).json()["items"]
        assert [(each["channel"], each["name"]) for each in mine] == [("b", "x"), ("b", "y")]
        admin, names, after = await found.bearer("admin"), list[str](), None
        while after is not None or not names:
            params = {"limit": 4} | ({"after": after} if after else {})
            page = (await found.client.get("/api/v1/schedules", headers=admin, params=params)).json()
            names += [f"{each['channel']}/{each['name']}" for each in page["items"]]
            after = page["after"]
        assert names == ["a/x", "a/y", "b/x", "b/y", "c/x", "c/y"]
        one = await found.client.get("/api/v1/channels/a/schedules?after=x", headers=admin)
        assert [each["name"] for each in one.json()["items"]] == ["y"]


async def test_a_token_makes_no_more_than_its_channel_may_have(bus: holdfast.Bus) -> None:
    async with application(bus, local=False, limits={"schedules": 1}) as found:
        headers = await found.bearer("channel", CHANNEL)
        assert (await found.client.put(PATH, json=BODY, headers=headers)).status_code == 201
        assert (await found.client.put(PATH, json={"every": "1h"}, headers=headers)).status_code == 200
        problem(await found.client.put(PATH + "2", json=BODY, headers=headers), 409)
        problem(await found.client.put(PATH, json=BODY, headers=await found.bearer("reader")), 403)


async def test_nobody_else_publishes_under_the_source_of_a_schedule(bus: holdfast.Bus) -> None:
    async with application(bus) as found:
        events = f"/api/v1/channels/{CHANNEL}/events"
        problem(await found.client.post(events, json={"source": "holdfast:schedule:nightly"}), 400)
        assert (await found.client.post(events, json={"source": "holdfasts"})).status_code == 201


async def send(found: Application, path: str, **fields: str) -> Any:
    page = (await found.client.get("/schedules/new")).text
    csrf = re.findall(r'name="csrf" value="(\w*)"', page)[-1]
    return await found.client.post(path, data={"csrf": csrf, **fields}, headers=found.form)


async def test_the_form_shows_the_ticks_before_it_can_be_saved(bus: holdfast.Bus) -> None:
    async with application(bus) as found:
        await found.sign_in("admin")
        assert 'value="save"' not in (await found.client.get("/schedules/new")).text
        shown = await send(found, "/schedules", **FORM, go="preview")
        assert len(re.findall(r"\d\d 03:00:00 CES?T", shown.text)) == 10
        assert 'value="save"' in shown.text
        assert await bus.schedules() == []
        wrong = await send(found, "/schedules", **FORM | {"cron": "0 3 * *"}, go="save")
        assert (wrong.status_code, "write five fields" in wrong.text) == (400, True)
        assert "&#34;n&#34;: 1" in wrong.text, "what was written is still there"
        saved = await send(found, "/schedules", **FORM, headers="a=b\r\n", go="save")
        assert (saved.status_code, saved.headers["Location"]) == (303, f"{PAGE}?notice=saved")
        [made] = await bus.schedules()
        assert (made.content.data, made.content.headers, made.missed) == (b'{"n": 1}', {"a": "b"}, "once")
        page = (await found.client.get(f"{PAGE}?notice=saved")).text
        assert "It is saved now." in page
        assert len(re.findall(r"03:00:00 CES?T", page)) == 10
        assert "nightly" in (await found.client.get("/schedules")).text
        edit = (await found.client.get(f"{PAGE}/edit")).text
        assert 'value="0 3 * * *"' in edit
        assert "a=b" in edit


async def test_actions_on_the_page(bus: holdfast.Bus) -> None:
    async with application(bus) as found:
        await found.sign_in("admin")
        await bus.schedule("nightly", CHANNEL, every="1h")
        assert (await send(found, f"{PAGE}/pause", paused="true")).status_code == 303
        assert "paused" in (await found.client.get(PAGE)).text
        await send(found, f"{PAGE}/pause", paused="false")
        assert not (await bus.schedules())[0].paused
        asked = (await found.client.get(f"{PAGE}/ask?act=run")).text
        run = re.findall(r'name="run" value="([\w-]+)"', asked)[0]
        for _ in range(2):
            assert (await send(found, f"{PAGE}/run", run=run)).status_code == 303
        assert len(await bus.read(CHANNEL)) == 1, "a second click is a repeat"
        assert "Remove nightly" in (await found.client.get(f"{PAGE}/ask?act=remove")).text
        forged = await found.client.post(f"{PAGE}/remove", data={"csrf": "x"}, headers=found.form)
        assert forged.status_code == 403
        removed = await send(found, f"{PAGE}/remove")
        assert removed.headers["Location"] == "/schedules?notice=removed"
        assert "No schedule yet." in (await found.client.get("/schedules")).text
