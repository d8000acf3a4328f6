"""Ingest records among the dead letters: listed, shown, loaded again and abandoned."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from walkit import Place, source_rows

import holdfast
from holdfast.deadletters import DeadLetters, Filter, Operations, Request, Runner
from holdfast.pipeline.failed.service import FailedEvents
from holdfast.pipeline.loader.decisions import Result
from holdfast.pipeline.warehouse import Column, Table, Tables, open_warehouse
from kit import CHANNEL, CONSUMER

TABLES = Tables({"orders": Table("events", (Column("total", "$.total", "integer"),))})
INGEST = Filter.of(kinds=["ingest"])


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """One good event, one that no column takes, and one under an id that is taken."""
    place = Place(tmp_path, tables=TABLES)
    data = [b'{"total":1}', b'{"total":"x"}', b'{"total":2}']
    batch = place.commit(source_rows(["good", "typed", "good"], data=data))
    assert place.loader().load([batch]) == [(batch, Result.LOADED)]
    return place


@pytest.fixture
async def letters(database: str, place: Place) -> AsyncIterator[DeadLetters]:
    async with holdfast.connect(database) as bus:
        failed = FailedEvents(place.wal, place.warehouse, place.tables)
        yield DeadLetters(bus, failed=failed)
    place.warehouse.close()


async def test_records_and_jobs_are_one_list(letters: DeadLetters) -> None:
    bus = letters.bus
    await bus.subscribe(CHANNEL, CONSUMER)
    await bus.publish(CHANNEL, {}, id="job")
    [job] = await bus.poll(CHANNEL, CONSUMER)
    await bus.finalize(job, success=False, error="boom", terminal=True)
    everything = await letters.find()
    assert [item.kind for item in everything.items] == ["job", "ingest", "ingest"]
    pages = []
    after = None
    while not pages or after is not None:
        page = await letters.find(Filter(), after, 1)
        pages, after = pages + page.items, page.after
    assert pages == everything.items
    records = await letters.find(INGEST)
    assert {(item.event_id, item.reason, item.consumer) for item in records.items} == {
        ("typed", "rejected", "ingest"),
        ("good", "conflict", "ingest"),
    }
    [typed] = (await letters.find(Filter.of(reason="rejected"))).items
    shown = (await letters.show(typed.id)).to_json()
    assert (shown["data"], shown["status"]) == ({"total": "x"}, "pending")
    assert (await letters.count(Filter())) == (3, True)


async def test_a_record_that_fails_again_is_told(letters: DeadLetters) -> None:
    runner = Runner(Operations(letters), "tester")
    [typed] = (await letters.find(Filter.of(reason="rejected"))).items
    again = await runner.do(Request("requeue", items=(typed.id,)), "ann")
    assert (again.progress.done, again.progress.skipped) == (0, 1)
    assert "failed again" in again.problems[0]
    assert len((await letters.find(INGEST)).items) == 2


async def test_a_record_that_can_be_loaded_by_now_is(letters: DeadLetters, place: Place) -> None:
    place.warehouse.close()
    tolerant = open_warehouse(place.url, Tables())
    letters.failed = FailedEvents(place.wal, tolerant, Tables())
    runner = Runner(Operations(letters), "tester")
    done = await runner.do(Request("requeue", INGEST, all=True), "ann")
    assert (done.progress.done, done.progress.skipped) == (1, 1), "the one under an id that is taken stays"
    assert [item.reason for item in (await letters.find(INGEST)).items] == ["conflict"]
    tolerant.close()
    assert place.query("SELECT count(*) FROM events") == [(2,)]


async def test_abandoned_records_leave_the_list(letters: DeadLetters) -> None:
    runner = Runner(Operations(letters), "tester")
    purged = await runner.do(Request("purge", INGEST, all=True), "ann")
    assert (purged.progress.done, purged.progress.expected) == (2, 2)
    assert (await letters.find(INGEST)).items == []
    assert letters.failed is not None
    assert {record.status for record in letters.failed.find()} == {"abandoned"}
    again = await runner.do(Request("purge", INGEST, all=True), "ann")
    assert again.progress.looked_at == 0


async def test_a_damaged_record_is_one_item_beside_the_others(letters: DeadLetters, place: Place) -> None:
    damage(place, "typed")
    items = (await letters.find(INGEST)).items
    assert {(item.event_id, item.reason) for item in items} == {
        ("good", "conflict"),
        ("(damaged)", "damaged"),
    }
    [item] = [item for item in items if item.reason == "damaged"]
    assert "checksum" in (await letters.show(item.id)).to_json()["error"]
    assert (await letters.count(Filter())) == (2, True)
    runner = Runner(Operations(letters), "tester")
    again = await runner.do(Request("requeue", items=(item.id,)), "ann")
    assert (again.progress.done, again.progress.skipped) == (0, 1)
    assert "repaired" in again.problems[0]


def damage(place: Place, event_id: str) -> None:
    """Cut the record of a failed event short."""
    found = FailedEvents(place.wal, place.warehouse, place.tables).find()
    [event] = [event for event in found if event.event_id == event_id]
    file = place.path_of(f"failed/{event.batch}/{event.channel}@{event.partition}@{event.position}.json")
    file.write_bytes(file.read_bytes()[:-9])


@pytest.mark.parametrize("command", [["dlq", "list"], ["failed", "list"]])
def test_the_command_line_lists_what_is_left_beside_damage(
    database: str, place: Place, command: list[str]
) -> None:
    damage(place, "typed")
    place.warehouse.close()
    listed = subprocess.run(
        [sys.executable, "-m", "holdfast.cli", *command, "--wal", place.settings.path, "--json"],
        env=os.environ | {"HOLDFAST_URL": database},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert listed.returncode == 0, listed.stderr
    found = json.loads(listed.stdout)
    items = found["items"] if isinstance(found, dict) else found
    assert {item["event_id"] for item in items} == {"good", "(damaged)"}


def test_the_command_line_lists_them(database: str, place: Place) -> None:
    place.warehouse.close()
    listed = subprocess.run(
        [sys.executable, "-m", "holdfast.cli", "dlq", "list", "--wal", place.settings.path, "--json"],
        env=os.environ | {"HOLDFAST_URL": database},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert listed.returncode == 0, listed.stderr
    assert {item["event_id"] for item in json.loads(listed.stdout)["items"]} == {"typed", "good"}
