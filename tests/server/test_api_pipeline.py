"""The pipeline over REST: failed events, what the drivers report, an event's life, and the audit."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from html import unescape
from pathlib import Path
from typing import Any

import httpx
import pytest
from application import Application, application, problem
from scene import ingest, ingest_reporter, with_store

import holdfast
from holdfast.cli.pipeline import pipeline_access
from holdfast.config.load import load
from holdfast.pipeline.connection import Connection
from holdfast.pipeline.reconcile.report import Difference, ReconcileReport, Tally, store_report
from holdfast.pipeline.warehouse import Column, Table, Tables
from kit import CHANNEL, CONSUMER

V1 = "/api/v1"
FAILED = f"{V1}/failed-events"
CONFIG = """
ingest:
  channels: [orders]
  warehouse: duckdb://{folder}/warehouse.duckdb
  wal: {{path: {folder}/wal}}
  tables:
    orders: {{table: events, columns: {{total: {{path: $.total, type: integer}}}}}}
"""
TABLES = Tables({CHANNEL: Table("events", (Column("total", "$.total", "integer"),))})


@pytest.fixture
async def ingested(bus: holdfast.Bus, tmp_path: Path) -> AsyncIterator[Application]:
    """An application with an ingest: it loaded one event and gave up on three."""
    receipts = [await bus.publish(CHANNEL, {"total": "x"}, id=f"bad-{n}") for n in range(3)]
    receipts.append(await bus.publish(CHANNEL, {"total": 1}, id="good"))
    ingest(tmp_path, TABLES, CHANNEL, [(each.id, each.position) for each in receipts])
    file = tmp_path / "holdfast.yaml"
    file.write_text(CONFIG.format(folder=tmp_path))
    urls = [bus.partitions.all[0].backend.url]
    with pipeline_access(load(file).config, file, urls) as books:
        async with application(bus, pipeline=books) as found:
            yield found


async def failed(found: Application, **query: Any) -> dict[str, Any]:
    answer = await found.client.get(FAILED, params=query)
    assert answer.status_code == 200, answer.text
    page: dict[str, Any] = answer.json()
    return page


async def test_failed_events_are_listed_shown_and_settled(ingested: Application) -> None:
    first = await failed(ingested, limit=2)
    rest = await failed(ingested, limit=2, after=first["after"])
    everything = first["items"] + rest["items"]
    assert [each["event_id"] for each in everything] == ["bad-0", "bad-1", "bad-2"]
    assert rest["after"] is None
    one, two, three = (f"{FAILED}/{each['id']}" for each in everything)
    shown = (await ingested.client.get(one)).json()
    assert shown == everything[0]
    assert (shown["event_payload"], shown["status"], shown["channel"]) == (
        '{"total":"x"}',
        "pending",
        CHANNEL,
    )
    again = (await ingested.client.post(f"{one}/retry")).json()
    assert (again["status"], again["retry_count"]) == ("pending", 1)
    done = (await ingested.client.post(f"{two}/resolve", json={"notes": "by hand"})).json()
    assert (done["status"], done["resolved_by"], done["resolution_notes"]) == ("resolved", "local", "by hand")
    over = (await ingested.client.post(f"{three}/abandon", json={"notes": "noise"})).json()
    assert over["status"] == "abandoned"
    problem(await ingested.client.post(f"{two}/retry"), 400)
    problem(await ingested.client.post(f"{one}/resolve", json={"notes": ""}), 422)
    problem(await ingested.client.get(f"{FAILED}/nothing"), 404)
    assert [each["event_id"] for each in (await failed(ingested, status="pending"))["items"]] == ["bad-0"]
    assert (await failed(ingested, channel="other"))["items"] == []


async def test_a_page_of_failed_events_is_bounded_by_bytes(ingested: Application) -> None:
    known = ingested.system
    async with application(known.bus, pipeline=known.pipeline, limits={"answer": 1_000}) as found:
        seen, cursors, query = [], [], {"limit": "100"}
        for _ in range(3):
            page = await failed(found, **query)
            [one] = page["items"]
            seen.append(one["event_id"])
            cursors.append(page["after"])
            query["after"] = page["after"]
        assert (seen, cursors[-1]) == (["bad-0", "bad-1", "bad-2"], None)
        mine = await found.bearer("channel", CHANNEL)
        ours = {"channel": CHANNEL, "after": cursors[0]}
        problem(await found.client.get(FAILED, params=ours, headers=mine), 400)
        for wrong in (cursors[0][32:], cursors[0][:-1], "x"):
            problem(await found.client.get(FAILED, params={"after": wrong}), 400)


async def test_the_page_shows_one_status_page_by_page(
    ingested: Application, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.server.pages.pipeline.SHOWN", 2)
    bad = {each["event_id"]: each["id"] for each in (await failed(ingested))["items"]}

    async def page(address: str) -> tuple[list[str], str | None]:
        """What a page shows, and where its link to the next one leads."""
        text = (await ingested.client.get(address)).text
        following = re.search(r'rel="next" href="([^"]*)"', text)
        names = [name for name in sorted(bad) if bad[name] in text]
        return names, unescape(following[1]) if following is not None else None

    async def pages(address: str) -> list[list[str]]:
        found = list[list[str]]()
        following: str | None = address
        while following is not None:
            names, following = await page(following)
            found.append(names)
        return found

    _, following = await page("/pipeline")
    assert [len(each) for each in await pages("/pipeline")] == [2, 1]
    for name in ("bad-0", "bad-1"):
        await ingested.client.post(f"{FAILED}/{bad[name]}/resolve", json={"notes": "by hand"})
    assert await pages("/pipeline") == [["bad-2"]]
    assert await pages("/pipeline?status=resolved") == [["bad-0", "bad-1"], []]
    assert await pages("/pipeline?status=abandoned") == [[]]
    assert (await ingested.client.get("/pipeline?status=odd")).status_code == 422
    forged = (following or "").replace("status=pending", "status=resolved")
    assert (await ingested.client.get(forged)).status_code == 400


async def test_the_pages_ask_for_what_rest_asks_for(ingested: Application) -> None:
    """An id of its form, and why an event is resolved or abandoned."""
    one, two, _ = [each["id"] for each in (await failed(ingested))["items"]]
    for address in ("x" * 129, "a%20b", "a.b"):
        assert (await ingested.client.get(f"{FAILED}/{address}")).status_code == 422, address
        assert (await ingested.client.get(f"/pipeline/failed/{address}")).status_code == 422, address
    form = await ingested.client.get(f"/pipeline/failed/{one}")
    [token, *_] = re.findall(r'name="csrf" value="([^"]*)"', form.text)

    async def post(act: str, failed: str = one, **fields: str) -> int:
        path, sent = f"/pipeline/failed/{failed}/{act}", {"csrf": token, **fields}
        return (await ingested.client.post(path, data=sent, headers=ingested.form)).status_code

    for act in ("resolve", "abandon"):
        rest = f"{FAILED}/{one}/{act}"
        for notes, refused in ((None, 422), ("", 422), ("x" * 10_001, 422)):
            body = {} if notes is None else {"notes": notes}
            assert (await ingested.client.post(rest, json=body)).status_code == refused
            assert await post(act, **body) == refused
        assert await post(act, "a.b", notes="by hand") == 422
    assert len((await failed(ingested, status="pending"))["items"]) == 3
    assert await post("retry") == 303
    assert await post("resolve", notes="by hand") == 303
    assert await post("abandon", two, notes="noise") == 303
    shown = {each["id"]: each["resolution_notes"] for each in (await failed(ingested))["items"]}
    assert (shown[one], shown[two]) == ("by hand", "noise")


async def test_a_damaged_record_hides_no_failed_event(ingested: Application, tmp_path: Path) -> None:
    [one, *_] = (await failed(ingested))["items"]
    [file] = (tmp_path / "wal" / "failed").glob(f"*/*@{one['position']}.json")
    file.write_bytes(file.read_bytes()[:-9])
    first = await failed(ingested, limit=1)
    rest = await failed(ingested, after=first["after"])
    listed = first["items"] + rest["items"]
    assert [each["event_id"] for each in listed] == ["(damaged)", "bad-1", "bad-2"]
    assert (listed[0]["id"], listed[0]["failure_reason"]) == (one["id"], "damaged")
    assert "checksum" in listed[0]["last_error"]
    letters = (await ingested.client.get(f"{V1}/deadletters", params={"kinds": "ingest"})).json()["items"]
    assert {each["event_id"] for each in letters} == {"(damaged)", "bad-1", "bad-2"}
    for path in ("/pipeline", f"/pipeline/failed/{one['id']}", f"/deadletters/ingest:{one['id']}"):
        shown = await ingested.client.get(path)
        assert (shown.status_code, "(damaged)" in shown.text) == (200, True), path
    said = problem(await ingested.client.post(f"{FAILED}/{one['id']}/retry"), 400)
    assert "repaired" in str(said["detail"])


async def test_a_retry_leaves_the_warehouse_to_the_ingest(ingested: Application, tmp_path: Path) -> None:
    """A server lives long; DuckDB's file belongs to one process at a time."""
    [one, *_] = (await failed(ingested))["items"]
    again = await asyncio.gather(*(ingested.client.post(f"{FAILED}/{one['id']}/retry") for _ in range(3)))
    assert {answer.json()["status"] for answer in again} == {"pending"}
    code = (
        f"import duckdb; duckdb.connect('{tmp_path}/warehouse.duckdb').execute('CREATE TABLE mine (n INT)')"
    )
    await asyncio.to_thread(subprocess.run, [sys.executable, "-c", code], check=True)


async def test_they_are_dead_letters_too(ingested: Application) -> None:
    page = (await ingested.client.get(f"{V1}/deadletters", params={"kinds": "ingest"})).json()
    assert {item["event_id"] for item in page["items"]} == {"bad-0", "bad-1", "bad-2"}
    body = {"kind": "delete", "items": [page["items"][0]["id"]]}
    asked = await ingested.client.post(f"{V1}/operations", json=body)
    done = await ingested.system.runner.follow(asked.json()["id"])
    assert done.progress.done == 1
    assert len((await failed(ingested, status="pending"))["items"]) == 2


async def test_a_token_sees_the_failed_events_of_its_channel(ingested: Application) -> None:
    [one, *_] = (await failed(ingested))["items"]
    mine, other = await ingested.bearer("channel", CHANNEL), await ingested.bearer("channel", "beta")
    get = ingested.client.get
    assert len((await get(FAILED, params={"channel": CHANNEL}, headers=mine)).json()["items"]) == 3
    problem(await get(FAILED, headers=mine), 403)
    item = f"{V1}/deadletters/ingest:{one['id']}"
    for path in (f"{FAILED}/{one['id']}", item):
        assert (await get(path, headers=mine)).status_code == 200
        problem(await get(path, headers=other), 403)
    told = {problem(await get(path, headers=other), 403)["detail"] for path in (f"{FAILED}/nothing", item)}
    told.add(problem(await get(f"{FAILED}/{one['id']}", headers=other), 403)["detail"])
    assert len(told) == 1, "a foreign id and an unknown one are refused in the same words"
    for verb, notes in (("retry", None), ("resolve", {"notes": "x"}), ("abandon", {"notes": "x"})):
        path = f"{FAILED}/{one['id']}/{verb}"
        problem(await ingested.client.post(path, json=notes, headers=other), 403)
    body: dict[str, Any] = {"kind": "delete", "items": [f"ingest:{one['id']}"]}
    asked = await ingested.client.post(f"{V1}/operations", json=body, headers=mine)
    assert asked.status_code == 202
    shown = await get(asked.headers["Location"], headers=mine)
    assert shown.json()["kind"] == "delete"
    problem(await get(asked.headers["Location"], headers=other), 404)


async def test_an_events_life_is_told(ingested: Application) -> None:
    bus = ingested.system.bus
    await bus.subscribe(CHANNEL, CONSUMER, start="earliest")
    jobs = await bus.poll(CHANNEL, CONSUMER, limit=10)
    for job in jobs:
        await bus.finalize(job, success=True)

    async def trace(**query: str) -> httpx.Response:
        return await ingested.client.get(f"{V1}/trace", params=query)

    [life] = (await trace(id="good")).json()
    assert (life["channel"], life["source"], life["id"]) == (CHANNEL, "default", "good")
    whats = " ".join(step["what"] for step in life["steps"])
    assert "published" in whats
    assert "done" in whats
    assert [each["id"] for each in (await trace(id="good", channel=CHANNEL)).json()] == ["good"]
    problem(await trace(id="never"), 404)
    problem(await trace(id=""), 422)
    mine = await ingested.bearer("channel", CHANNEL)
    query = {"id": "good", "channel": CHANNEL}
    assert len((await ingested.client.get(f"{V1}/trace", params=query, headers=mine)).json()) == 1
    problem(await ingested.client.get(f"{V1}/trace", params={"id": "good"}, headers=mine), 403)


async def test_without_an_ingest_there_is_nothing_to_tell(bus: holdfast.Bus) -> None:
    async with application(bus) as found:
        for path in ("failed-events", "failed-events/x", "wal", "trace?id=x"):
            problem(await found.client.get(f"{V1}/{path}"), 404)
        assert (await found.client.get(f"{V1}/pipeline")).json() == {"drivers": [], "reconciled": []}
        assert "Nobody has asked yet." in (await found.client.get("/pipeline")).text


async def test_the_drivers_and_the_wal_are_as_last_reported(bus: holdfast.Bus, tmp_path: Path) -> None:
    store = bus.partitions.all[0].backend
    await with_store(store.url, ingest_reporter(tmp_path).look)
    async with application(bus) as found:
        [driver] = (await found.client.get(f"{V1}/pipeline")).json()["drivers"]
        assert (driver["name"], driver["trouble"]) == ("ingest", None)
        assert (await found.client.get(f"{V1}/wal")).json() == driver["report"]["wal"]
        mine = await found.bearer("channel", CHANNEL)
        problem(await found.client.get(f"{V1}/pipeline", headers=mine), 403)
        problem(await found.client.get(f"{V1}/wal", headers=mine), 403)


async def test_the_last_reconciliation_of_each_channel_is_shown(bus: holdfast.Bus) -> None:
    lost = [Difference("warehouse", "missing", 0, "0001", "default", f"<i>{n}") for n in range(30)]
    late = ReconcileReport("late", None, 9, 0, 7, None, None, None, 0, [Tally("archive", "waiting", 2)], [])
    even = ReconcileReport(CHANNEL, None, 9, 0, 9, 8, 1, 0, 0, [], [])
    odd = replace(even, ingested=1000, tallies=[Tally("warehouse", "missing", 30)], differences=lost)

    def file(connection: Connection) -> None:
        for report in (late, odd):
            store_report(connection, "gbe", report)

    store = bus.partitions.all[0].backend
    await with_store(store.url, file)
    async with application(bus) as found:
        told = (await found.client.get(f"{V1}/pipeline")).json()["reconciled"]
        assert [(each["channel"], each["verdict"]) for each in told] == [
            (CHANNEL, "not equal"),
            ("late", "on its way"),
        ]
        assert (told[0]["report"]["ingested"], len(told[0]["report"]["differences"])) == (1000, 20)
        shown = (await found.client.get("/pipeline")).text
        for words in ("not equal", "30 missing in the warehouse", "1,000", "&lt;i&gt;7", "on its way"):
            assert words in shown
        await with_store(store.url, lambda connection: store_report(connection, "gbe", even))
        [again, _] = (await found.client.get(f"{V1}/pipeline")).json()["reconciled"]
        assert (again["channel"], again["verdict"], again["report"]["tallies"]) == (CHANNEL, "equal", [])


async def test_the_audit_says_who_did_what(bus: holdfast.Bus) -> None:
    async with application(bus, local=False) as found:
        admin, mine = await found.bearer("admin"), await found.bearer("channel", CHANNEL)
        path = f"{V1}/channels/{CHANNEL}"
        await found.client.put(path, json={"display_name": "Orders"}, headers=admin)
        await found.client.put(f"{path}/consumers/{CONSUMER}", json={}, headers=mine)
        body = {"kind": "purge", "filter": {"channel": CHANNEL}}
        await found.client.post(f"{V1}/operations", json=body, headers=mine)
        problem(await found.client.get(f"{V1}/audit", headers=mine), 403)
        told = (await found.client.get(f"{V1}/audit", params={"limit": 10}, headers=admin)).json()
        acts = [(each["event"]["data"]["action"], each["event"]["data"]["outcome"]) for each in told]
        assert [act for act, _ in acts] == [f"GET {V1}/audit", "purge", "put consumer", "put channel"]
        assert acts[0][1].startswith("refused: ")
        actors = {each["event"]["data"]["actor"].split(":")[0] for each in told}
        assert actors == {"token"}
        assert len((await found.client.get(f"{V1}/audit", params={"limit": 2}, headers=admin)).json()) == 2
