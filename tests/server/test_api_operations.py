"""Operations over REST: asked for, looked at, cancelled, resumed; from 202 to the end."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import httpx
import pytest
from application import Application, application, problem
from running import running

import holdfast
from holdfast.deadletters.items import Filter
from holdfast.deadletters.operation import Operation, OperationOptions, Request, fields_of
from holdfast.model.event import new_id
from kit import CHANNEL, CONSUMER, bury, claim, publish, states, subscribe, until

OPERATIONS = "/api/v1/operations"
FILTER = {"channel": CHANNEL, "consumer": CONSUMER}


@pytest.fixture
async def graves(bus: holdfast.Bus) -> holdfast.Bus:
    """Five dead letters of one consumer, and one of another channel."""
    store = bus.partitions.all[0].backend
    for channel in (CHANNEL, "secret"):
        await subscribe(store, channel=channel)
        await publish(store, *("abcde" if channel == CHANNEL else "s"), channel=channel)
        for job in await claim(store, channel=channel):
            await bury(store, job)
    return bus


async def start(found: Application, headers: dict[str, str] | None = None, **body: Any) -> httpx.Response:
    return await found.client.post(OPERATIONS, json=body, headers=headers)


async def run(found: Application, answer: httpx.Response) -> dict[str, Any]:
    """See an operation that was accepted through to its end."""
    assert answer.status_code == 202, answer.text
    assert (answer.json()["state"], answer.json()["outcome"]) == ("waiting", "")
    await found.system.runner.follow(answer.json()["id"])
    done: dict[str, Any] = (await found.client.get(answer.headers["Location"])).json()
    return done


async def test_a_dry_run_changes_nothing_and_the_operation_does_what_it_said(graves: holdfast.Bus) -> None:
    store = graves.partitions.all[0].backend
    async with application(graves) as found:
        dry = await start(found, kind="requeue", filter=FILTER, dry_run=True)
        assert dry.status_code == 200
        preview = dry.json()
        assert (preview["count"], preview["exact"], len(preview["sample"])) == (5, True, 5)
        assert await states(store) == {"dead": 5}
        done = await run(found, await start(found, kind="requeue", filter=FILTER))
        assert (done["state"], done["progress"]["done"], done["actor"]) == ("done", 5, "local")
        assert await states(store) == {"ready": 5}


async def test_some_are_purged_and_one_is_deleted_by_their_ids(graves: holdfast.Bus) -> None:
    async with application(graves) as found:
        page = await found.client.get("/api/v1/deadletters", params=FILTER)
        ids = [item["id"] for item in page.json()["items"]]
        done = await run(found, await start(found, kind="purge", items=ids[:2]))
        assert done["progress"]["done"] == 2
        done = await run(found, await start(found, kind="delete", items=[ids[2]]))
        assert done["progress"]["done"] == 1
        status = (await found.client.get("/dlq-status")).json()["consumers"]
        assert [each["deadCount"] for each in status] == [2, 1]


@pytest.mark.parametrize("number", [10**40, -(2**64), 2**63])
async def test_a_patch_keeps_numbers_of_any_size(graves: holdfast.Bus, number: int) -> None:
    async with application(graves) as found:
        [item, *_] = (await found.client.get("/api/v1/deadletters", params=FILTER)).json()["items"]
        patch = [{"op": "add", "path": "/fixed", "value": [number]}]
        done = await run(found, await start(found, kind="patch", items=[item["id"]], patch=patch))
        assert (done["progress"]["done"], done["options"]["patch"]) == (1, patch), done
        [kept] = (await found.client.get(OPERATIONS)).json()["items"]
        assert kept["options"]["patch"] == patch
        assert (await found.client.get(f"/operations/{done['id']}")).status_code == 200
        [job] = await claim(graves.partitions.all[0].backend)
        assert job.event.json()["fixed"] == [number]


async def test_a_patch_shows_its_change_and_guards_it(graves: holdfast.Bus) -> None:
    async with application(graves) as found:
        page = await found.client.get("/api/v1/deadletters", params={**FILTER, "limit": 1})
        [item] = page.json()["items"]
        patch = [{"op": "add", "path": "/fixed", "value": True}]
        dry = await start(found, kind="patch", items=[item["id"]], patch=patch, dry_run=True)
        [change] = dry.json()["changes"]
        assert (change["before"], change["after"]) == ({"id": "e"}, {"id": "e", "fixed": True})
        other = await start(found, kind="patch", items=[item["id"]], patch=patch, digest="0" * 64)
        assert (await run(found, other))["progress"]["skipped"] == 1
        asked = await start(found, kind="patch", items=[item["id"]], patch=patch, digest=change["digest"])
        assert (await run(found, asked))["progress"]["done"] == 1
    [job] = await graves.poll(CHANNEL, CONSUMER)
    assert job.event.json() == {"id": "e", "fixed": True}


async def test_a_canary_that_dies_again_stops_the_rest(graves: holdfast.Bus) -> None:
    async with running(graves) as system:
        body = {"kind": "redrive", "filter": FILTER, "canary": {"size": 2, "share": 1.0}}
        asked = await system.client.post(OPERATIONS, json=body)
        path = asked.headers["Location"]

        async def worked() -> bool:
            for job in await graves.poll(CHANNEL, CONSUMER, limit=5):
                await graves.finalize(job, success=False, error="still", terminal=True)
            state: str = (await system.client.get(path)).json()["state"]
            return state == "stopped"

        await until(worked)
        shown = (await system.client.get(path)).json()
        assert (shown["progress"]["done"], shown["progress"]["expected"]) == (2, 5)
        assert "0 of 2" in shown["outcome"]
        assert await states(graves.partitions.all[0].backend) == {"dead": 5}
        again = await system.client.post(f"{path}/resume")
        assert (again.status_code, again.headers["Location"]) == (202, path)

        async def ended() -> bool:
            state: str = (await system.client.get(path)).json()["state"]
            return state == "done"

        await until(ended)
        assert (await states(graves.partitions.all[0].backend))["ready"] >= 3


async def test_a_cancelled_one_begins_nothing_and_can_go_on(graves: holdfast.Bus) -> None:
    async with application(graves) as found:
        asked = (await start(found, kind="purge", filter=FILTER)).json()
        cancelled = (await found.client.post(f"{OPERATIONS}/{asked['id']}/cancel")).json()
        assert (cancelled["state"], cancelled["progress"]["done"]) == ("cancelled", 0)
        assert await found.system.runner.resume_all() == 0
        told = problem(await found.client.post(f"{OPERATIONS}/{asked['id']}/cancel"), 409)
        assert "cancelled already" in str(told["detail"])
        done = await run(found, await found.client.post(f"{OPERATIONS}/{asked['id']}/resume"))
        assert (done["state"], done["progress"]["done"]) == ("done", 5)
        problem(await found.client.post(f"{OPERATIONS}/{asked['id']}/resume"), 409)


async def test_what_makes_no_sense_is_refused(graves: holdfast.Bus) -> None:
    wrong: list[tuple[dict[str, Any], int]] = [
        ({"kind": "purge"}, 400),
        ({"kind": "purge", "filter": {}}, 400),
        ({"kind": "purge", "filter": FILTER, "items": ["job:a:b:1"]}, 400),
        ({"kind": "purge", "filter": FILTER, "canary": {"size": 1}}, 400),
        ({"kind": "patch", "filter": FILTER}, 400),
        ({"kind": "requeue", "items": ["nonsense"]}, 400),
        ({"kind": "remove_consumer", "filter": FILTER}, 422),
        ({"kind": "requeue", "filter": {**FILTER, "chanel": "x"}}, 422),
        ({"kind": "requeue", "filter": FILTER, "rate": 0}, 422),
    ]
    async with application(graves) as found:
        for body, status in wrong:
            problem(await start(found, **body), status)
        problem(await found.client.get(f"{OPERATIONS}/nothing"), 404)
        problem(await found.client.post(f"{OPERATIONS}/nothing/cancel"), 404)
        everything = await start(found, kind="requeue", filter={}, all=True)
        assert (await run(found, everything))["progress"]["done"] == 6


async def test_the_list_goes_page_by_page_and_shows_what_is_the_callers(graves: holdfast.Bus) -> None:
    async with application(graves, local=False) as found:
        admin, mine = await found.bearer("admin"), await found.bearer("channel", CHANNEL)
        for number in range(5):
            wanted = FILTER if number % 2 else {"channel": "secret"}
            answer = await start(found, admin, kind="purge", filter={**wanted, "reason": f"r-{number}"})
            assert answer.status_code == 202
        seen, after = [], None
        while True:
            query = {"limit": 2} | ({"after": after} if after else {})
            page = (await found.client.get(OPERATIONS, params=query, headers=admin)).json()
            seen += [each["filter"]["reason"] for each in page["items"]]
            if (after := page["after"]) is None:
                break
        assert seen == ["r-4", "r-3", "r-2", "r-1", "r-0"]
        page = (await found.client.get(OPERATIONS, params={"limit": 2}, headers=mine)).json()
        assert [each["filter"]["reason"] for each in page["items"]] == ["r-3", "r-1"]


async def many(found: Application, number: int, wanted: Filter, *patch: dict[str, Any]) -> list[str]:
    """Operations as the service writes them, each asked for a little later than the one before."""
    store = await found.system.operations.first()
    now = await store.now()
    made = []
    for n in range(number):
        request = Request("patch" if patch else "purge", wanted, options=OperationOptions(patch=patch))
        created = now - timedelta(microseconds=number - n)
        operation = Operation(new_id(), request, "somebody", created)
        key = f"gbe.state.operations.{operation.id}"
        assert await store.records.put(key, fields_of(operation), 0, created)
        made.append(operation.id)
    return made


async def test_a_busy_neighbour_pushes_nobody_off_the_list(bus: holdfast.Bus) -> None:
    async with application(bus, local=False) as found:
        mine = await found.bearer("channel", CHANNEL)
        own = await many(found, 3, Filter.of(kinds=["job"], **FILTER))
        others = set(await many(found, 1_010, Filter.of(kinds=["job"], channel="secret")))
        seen, pages, query = [], 0, {"limit": "2"}
        while True:
            page = (await found.client.get(OPERATIONS, params=query, headers=mine)).json()
            seen += [each["id"] for each in page["items"]]
            pages += 1
            if page["after"] is None:
                break
            query["after"] = page["after"]
            assert not any(each in page["after"] for each in others)
        assert (seen, pages) == (own[::-1], 4)
        await found.sign_in("channel", CHANNEL)
        path, html = "/operations", ""
        for _ in range(3):
            html = (await found.client.get(path)).text
            if (link := re.search(r'rel="next" href="([^"]+)"', html)) is None:
                break
            path = link[1].replace("&amp;", "&")
        assert all(each in html for each in own)


async def test_a_page_of_large_operations_ends_early(bus: holdfast.Bus) -> None:
    async with application(bus, limits={"answer": 350_000}) as found:
        patch = {"op": "replace", "path": "/a", "value": "x" * 100_000}
        made = await many(found, 10, Filter.of(kinds=["job"], **FILTER), patch)
        seen, query = [], {"limit": "1000"}
        while True:
            answer = await found.client.get(OPERATIONS, params=query)
            assert len(answer.content) < 500_000
            seen += [each["id"] for each in answer.json()["items"]]
            if (after := answer.json()["after"]) is None:
                break
            query["after"] = after
        assert seen == made[::-1]
        for wrong in ("x", made[0], f"{'0' * 32}1.{made[0]}"):
            problem(await found.client.get(OPERATIONS, params={"after": wrong}), 400)


async def test_a_channels_token_operates_on_its_own_and_a_consumers_on_nothing(graves: holdfast.Bus) -> None:
    async with application(graves, local=False) as found:
        admin, mine = await found.bearer("admin"), await found.bearer("channel", CHANNEL)
        foreign = (await start(found, admin, kind="purge", filter={"channel": "secret"})).json()["id"]
        refused: list[dict[str, Any]] = [
            {"filter": {"channel": "secret"}},
            {"filter": {}, "all": True},
            {"filter": {"reason": "terminal"}},
            {"items": [f"job:secret:{CONSUMER}:1"]},
            {"items": ["ingest:abc"]},
        ]
        for body in refused:
            problem(await start(found, mine, kind="purge", **body), 403)
            problem(await start(found, mine, kind="purge", dry_run=True, **body), 403)
        for verb in ("cancel", "resume"):
            problem(await found.client.post(f"{OPERATIONS}/{foreign}/{verb}", headers=mine), 404)
        worker = await found.bearer("consumer", CHANNEL, CONSUMER)
        problem(await start(found, worker, kind="purge", filter=FILTER), 403)
        asked = await start(found, mine, kind="purge", filter=FILTER)
        assert asked.status_code == 202
        await found.system.runner.follow(asked.json()["id"])
        assert await states(graves.partitions.all[0].backend) == {"purged": 5}


async def test_an_empty_word_of_a_filter_does_not_mean_all(bus: holdfast.Bus) -> None:
    async with application(bus) as found:
        for word in ("consumer", "reason", "fingerprint", "text"):
            wanted = {"kind": "purge", "filter": {"channel": CHANNEL, word: ""}}
            problem(await found.client.post("/api/v1/operations", json=wanted), 422)
