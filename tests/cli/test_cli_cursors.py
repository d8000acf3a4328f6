"""`holdfast cursors`: stream consumers are seen, and removed after a question."""

from __future__ import annotations

import asyncio

import pytest
from shell import Run, Start

import holdfast
from holdfast.bus.sync import SyncBus
from holdfast.contracts import Backend
from holdfast.wiring import backend


@pytest.fixture
def archived(hf: SyncBus, database: str) -> None:
    """Three events, of which an archiver has the first."""

    async def attach() -> None:
        store: Backend = backend(database)
        await store.open()
        await store.cursors.attach("orders", "archiver")
        await store.cursors.move("orders", "archiver", None, receipts[0].position)
        await store.close()

    receipts = hf.publish_many("orders", [holdfast.Event(number, f"o-{number}") for number in range(3)])
    asyncio.run(attach())


def test_they_are_listed_with_what_is_kept_for_them(run: Run, archived: None) -> None:
    [cursor] = run("cursors", "list", "orders", "--json").json
    assert (cursor["channel"], cursor["consumer"], cursor["behind"]) == ("orders", "archiver", 2)
    assert "archiver" in run("cursors", "list").out
    assert "no channel 'none'" in run("cursors", "list", "none").err


def test_one_is_removed_for_good(run: Run, archived: None, hf: SyncBus) -> None:
    [shown] = run("cursors", "remove", "orders", "archiver", "--dry-run", "--json").json
    assert shown["behind"] == 2
    answer = run("cursors", "remove", "orders", "archiver", "--yes", "--by", "ann")
    assert (answer.code, answer.err) == (0, "archiver of orders was removed\n")
    assert run("cursors", "list", "--json").json == []
    told = hf.read("gbe.events.system.audit")[-1].event.json()
    assert (told["actor"], told["action"], told["target"]) == ("ann", "remove cursor", "orders/archiver")
    again = run("cursors", "remove", "orders", "archiver", "--yes")
    assert (again.code, "no stream consumer 'archiver'" in again.err) == (1, True)


def test_it_says_what_may_be_lost_and_asks(start: Start, archived: None, run: Run) -> None:
    process = start("cursors", "remove", "orders", "archiver")
    _, err = process.communicate("n\n")
    assert process.returncode == 1
    assert "archiver of orders is 2 events behind" in err
    assert len(run("cursors", "list", "--json").json) == 1
