"""Queries over REST and on their page: who may ask, what they get, and what is written down about it."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from application import Application, application, problem
from scene import ingest

import holdfast
from holdfast.cli.pipeline import pipeline_access
from holdfast.config.load import load
from holdfast.pipeline.warehouse import Tables
from holdfast.server.pages.pipeline import EXAMPLES
from kit import CHANNEL

QUERY = "/api/v1/query"
CONFIG = """
ingest:
  channels: [orders]
  warehouse: duckdb://{folder}/warehouse.duckdb
  wal: {{path: {folder}/wal}}
"""


@pytest.fixture
async def asked(bus: holdfast.Bus, tmp_path: Path) -> AsyncIterator[Application]:
    """An application whose warehouse has an event."""
    receipt = await bus.publish(CHANNEL, {"total": 1}, id="good")
    ingest(tmp_path, Tables(), CHANNEL, [(receipt.id, receipt.position)])
    async for each in _house(bus, tmp_path):
        yield each


@pytest.fixture
async def without(bus: holdfast.Bus, tmp_path: Path) -> AsyncIterator[Application]:
    """An application on a machine that has no warehouse."""
    async for each in _house(bus, tmp_path):
        yield each


async def _house(bus: holdfast.Bus, folder: Path) -> AsyncIterator[Application]:
    file = folder / "holdfast.yaml"
    file.write_text(CONFIG.format(folder=folder))
    with pipeline_access(load(file).config, file, [bus.partitions.all[0].backend.url]) as books:
        async with application(bus, local=False, pipeline=books) as found:
            yield found


async def ask(found: Application, sql: str, *scope: str, **more: object) -> httpx.Response:
    headers = await found.bearer(*scope)
    return await found.client.post(QUERY, json={"sql": sql, **more}, headers=headers)


async def test_whoever_reads_every_channel_may_ask(asked: Application) -> None:
    for scope in ("admin", "reader"):
        answer = await ask(asked, "SELECT id, channel FROM all_events", scope)
        assert answer.status_code == 200, answer.text
        told = answer.json()
        assert (told["rows"], told["truncated"]) == ([["good", CHANNEL]], False)
        assert told["columns"][0] == {"name": "id", "type": "VARCHAR"}


async def test_whoever_reads_some_channels_may_not(asked: Application) -> None:
    for scope in (("reader", CHANNEL), ("reader", "orders.>"), ("channel", CHANNEL), ("producer",)):
        problem(await ask(asked, "SELECT 1", *scope), 403)
    problem(await asked.client.post(QUERY, json={"sql": "SELECT 1"}), 401)


async def test_wrong_sql_and_attacks_are_the_callers_fault(asked: Application) -> None:
    for sql, words in (
        ("SELEC 1", "syntax error"),
        ("SELECT * FROM read_text('/etc/passwd')", "disabled"),
        ("DROP TABLE events", "DROP is not allowed"),
    ):
        assert words in problem(await ask(asked, sql, "admin"), 400)["detail"]
    problem(await ask(asked, "", "admin"), 422)
    problem(await ask(asked, "SELECT 1", "admin", limit=10_001), 422)


async def test_a_query_is_audited_however_it_ends(asked: Application) -> None:
    await ask(asked, "SELECT\n  1", "admin")
    await ask(asked, "SELEC 2", "admin")
    found = [each.event.json() for each in await asked.system.audit.latest(2)]
    assert [each["target"] for each in found] == ["SELEC 2", "SELECT 1"]
    assert found[0]["outcome"].startswith("failed: ")
    assert (found[1]["action"], found[1]["outcome"]) == ("query", "done")


async def test_a_server_without_a_warehouse_says_so(without: Application) -> None:
    assert "there is no warehouse" in problem(await ask(without, "SELECT 1", "admin"), 404)["detail"]
    await without.sign_in("admin")
    answer = await send(without, "SELECT 1")
    assert answer.status_code == 404
    assert "there is no warehouse" in answer.text


async def test_only_so_many_run_at_once(asked: Application) -> None:
    headers = await asked.bearer("admin")
    with asked.system.queries.take("somebody"), asked.system.queries.take("somebody"):
        with asked.system.queries.take("else"), asked.system.queries.take("else"):
            answer = await asked.client.post(QUERY, json={"sql": "SELECT 1"}, headers=headers)
            problem(answer, 503)
        assert (await asked.client.post(QUERY, json={"sql": "SELECT 1"}, headers=headers)).status_code == 200


async def send(found: Application, sql: str, path: str = "/query") -> httpx.Response:
    """As a browser sends the form."""
    shown = await found.client.get("/query")
    csrf = re.search(r'name="csrf" value="(\w+)"', shown.text)
    assert csrf is not None
    return await found.client.post(path, data={"sql": sql, "csrf": csrf[1]}, headers=found.form)


async def test_the_page_shows_rows_and_nothing_in_them_is_markup(asked: Application) -> None:
    await asked.sign_in("reader")
    answer = await send(
        asked,
        "SELECT id, '<script>alert(1)</script>' AS \"<b>\", NULL AS nothing, 42 AS number FROM all_events",
    )
    assert answer.status_code == 200
    assert "&lt;script&gt;alert(1)" in answer.text
    assert "&lt;b&gt;</th>" in answer.text
    assert "<script>alert" not in answer.text
    assert '<td class="number">42</td>' in answer.text


async def test_the_page_keeps_a_query_that_is_wrong_and_says_what_is(asked: Application) -> None:
    await asked.sign_in("reader")
    answer = await send(asked, "SELEC\r\n<b>")
    assert answer.status_code == 400
    assert "syntax error" in answer.text
    assert "SELEC\n&lt;b&gt;</textarea>" in answer.text


async def test_the_page_is_for_those_who_read_every_channel_and_send_our_form(asked: Application) -> None:
    await asked.sign_in("reader", CHANNEL)
    assert (await asked.client.get("/query")).status_code == 403
    await asked.sign_in("reader")
    forged = await asked.client.post("/query", data={"sql": "SELECT 1", "csrf": "x"}, headers=asked.form)
    assert forged.status_code == 403


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda each: each.name)
async def test_an_example_is_shown_and_runs(asked: Application, example: object) -> None:
    name, title, sql = example  # type: ignore[misc]  # a named tuple
    await asked.sign_in("reader")
    shown = await asked.client.get("/query", params={"example": name})
    assert title in shown.text
    answer = await send(asked, sql)
    assert answer.status_code == 200, answer.text
