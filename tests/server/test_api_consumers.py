"""Consumers over REST: made, changed under an ETag, and removed with everything that is theirs."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest
from application import Application, application, problem

import holdfast
from holdfast.model.event import Event
from kit import CHANNEL, CONSUMER, MINUTE, bury, claim, complete, publish, states, subscribe

V1 = "/api/v1"
LIST = f"{V1}/channels/{CHANNEL}/consumers"
PATH = f"{LIST}/{CONSUMER}"


async def put(found: Application, body: dict[str, Any] | None = None, **headers: str) -> httpx.Response:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return await found.client.put(PATH, json=body or {}, headers=named)


async def test_a_consumer_is_made_and_changed_under_its_etag(each: holdfast.Bus) -> None:
    async with application(each) as found:
        made = await put(found, {"max_attempts": 2, "backoff": ["1s", "10s"]}, If_None_Match="*")
        assert made.status_code == 201
        assert made.json()["policy"]["backoff"] == ["1s", "10s"]
        shown = await found.client.get(PATH)
        assert shown.headers["ETag"] == made.headers["ETag"] == f'"{made.json()["revision"]}"'
        body = {"max_attempts": 3, "paused": True, "display_name": "Billing"}
        changed = await put(found, body, If_Match=made.headers["ETag"])
        assert changed.status_code == 200
        assert changed.headers["ETag"] != made.headers["ETag"]
        got = changed.json()
        assert (got["paused"], got["display_name"], got["policy"]["max_attempts"]) == (True, "Billing", 3)
        problem(await put(found, {}, If_Match=made.headers["ETag"]), 412)
        problem(await put(found, {}, If_None_Match="*"), 412)
        assert (await found.client.get(PATH)).json() == got
        assert (await put(found, {"paused": False})).json()["paused"] is False


async def test_attempts_can_be_without_a_limit(bus: holdfast.Bus) -> None:
    async with application(bus) as found:
        made = await put(found, {"max_attempts": "unlimited"})
        assert (made.status_code, made.json()["policy"]["max_attempts"]) == (201, "unlimited")
        assert (await found.client.get(PATH)).json()["policy"]["max_attempts"] == "unlimited"
        for value in ("many", "5", 0, 10_001, 2**31 - 1, None, 1.5, True):
            problem(await put(found, {"max_attempts": value}), 422)


async def test_a_change_that_means_one_makes_none(bus: holdfast.Bus) -> None:
    async with application(bus) as found:
        for etag in ("*", '"1"', 'W/"1"', f'"{10**30}"'):
            problem(await put(found, {}, If_Match=etag), 412)
            problem(await found.client.delete(PATH, headers={"If-Match": etag}), 404)
        problem(await found.client.get(PATH), 404)


async def test_conditions_that_cannot_hold_are_told(bus: holdfast.Bus) -> None:
    await subscribe(bus.partitions.all[0].backend)
    async with application(bus) as found:
        problem(await put(found, {}, If_Match='"two"'), 400)
        problem(await put(found, {}, If_None_Match='"1"'), 400)
        problem(await found.client.delete(PATH, headers={"If-Match": '"9"'}), 412)
        everything = await found.client.delete(PATH, headers={"If-Match": "*"}, params={"dry_run": True})
        assert everything.status_code == 200


@pytest.mark.parametrize(
    "bodies",
    [
        [{"max_attempts": number} for number in range(1, 7)],
        [{"display_name": f"Billing {number}"} for number in range(6)],
    ],
    ids=["policies", "names"],
)
async def test_of_those_who_saw_the_same_one_wins(each: holdfast.Bus, bodies: list[dict[str, Any]]) -> None:
    await each.subscribe(CHANNEL, CONSUMER)
    async with application(each) as found:
        etag = (await found.client.get(PATH)).headers["ETag"]
        answers = await asyncio.gather(*(put(found, body, If_Match=etag) for body in bodies))
        [won] = [answer for answer in answers if answer.status_code == 200]
        assert [answer.status_code for answer in answers].count(412) == len(bodies) - 1
        assert (await found.client.get(PATH)).json() == won.json()


async def test_a_policy_that_makes_no_sense_is_refused(bus: holdfast.Bus) -> None:
    wrong: list[tuple[dict[str, Any], int]] = [
        ({"lease": "soon"}, 400),
        ({"lease": "1ms"}, 400),
        ({"dead_letter": CHANNEL}, 400),
        ({"dead_letter": "missing"}, 400),
        ({"start": "2030-01-31T09:00:00"}, 422),
        ({"max_attempt": 3}, 422),
    ]
    async with application(bus) as found:
        for body, status in wrong:
            problem(await put(found, body), status)
        problem(await found.client.get(PATH), 404)


async def test_lists_go_page_by_page(bus: holdfast.Bus) -> None:
    for name in ("a", "b", "c"):
        await bus.subscribe(CHANNEL, name)
    await bus.subscribe("other", "d")
    async with application(bus) as found:
        first = (await found.client.get(LIST, params={"limit": 2})).json()
        rest = (await found.client.get(LIST, params={"limit": 2, "after": first["after"]})).json()
        assert [one["name"] for one in first["items"] + rest["items"]] == ["a", "b", "c"]
        assert rest["after"] is None
        problem(await found.client.get(f"{V1}/channels/nothing/consumers"), 404)


async def test_a_consumer_goes_with_its_jobs_dead_letters_and_counts(each: holdfast.Bus) -> None:
    store = each.partitions.all[0].backend
    await subscribe(store)
    await subscribe(store, "other")
    await publish(store, "a", "b", "c")
    dead, _ = await claim(store, 2)
    await bury(store, dead)
    async with application(each) as found:
        dry = await found.client.delete(PATH, params={"dry_run": True})
        assert (dry.status_code, dry.json()) == (200, {"jobs": {"dead": 1, "leased": 1, "ready": 1}})
        asked = await found.client.delete(PATH)
        assert asked.status_code == 202
        assert await found.system.runner.resume_all() == 1
        done = (await found.client.get(asked.headers["Location"])).json()
        assert (done["kind"], done["state"]) == ("remove_consumer", "done")
        problem(await found.client.get(PATH), 404)
        problem(await found.client.delete(PATH), 404)
        status = (await found.client.get("/dlq-status")).json()["consumers"]
        assert [(one["consumerId"], one["deadCount"]) for one in status] == [("other", 0)]
        assert (await put(found, {"start": "earliest"})).status_code == 201
    await each.publish_many(CHANNEL, [Event({}, "d")])
    assert len(await each.poll(CHANNEL, "other", limit=10)) == 4


async def test_a_consumer_is_emptied_of_what_waits(each: holdfast.Bus) -> None:
    store = each.partitions.all[0].backend
    await subscribe(store)
    await publish(store, "a", "b", "c", "d")
    dead, held = await claim(store, 2)
    await bury(store, dead)
    await publish(store, "later", at=await store.now() + MINUTE)
    async with application(each) as found:
        dry = await found.client.post(f"{PATH}/empty", params={"dry_run": True})
        assert (dry.status_code, dry.json()) == (200, {"jobs": {"ready": 2, "scheduled": 1}})
        problem(await found.client.post(f"{PATH}/empty", headers={"If-Match": '"99"'}), 412)
        asked = await found.client.post(f"{PATH}/empty")
        assert asked.status_code == 202
        assert await found.system.runner.resume_all() == 1
        done = (await found.client.get(asked.headers["Location"])).json()
        assert (done["kind"], done["state"]) == ("empty_consumer", "done")
        assert done["outcome"] == "3 of 3 done, 0 skipped"
        problem(await found.client.post(f"{LIST}/nobody/empty"), 404)
    assert await states(store) == {"leased": 1, "dead": 1, "cancelled": 3}
    assert await complete(store, held)
