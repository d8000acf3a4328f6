"""The four failure scenarios that the consumer WAL was made for, each with its outcome."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import duckdb
import pytest

import holdfast
from holdfast.embedded import Postgres
from holdfast.model.errors import Unavailable
from holdfast.pipeline.loader.decisions import Result
from holdfast_chaos import without_spark as plain_ingest
from holdfast_chaos.rig import FORKS
from holdfast_chaos.without_spark import CHANNEL, SparklessIngest


def publish(url: str, first: int, last: int) -> None:
    with holdfast.connect_sync(url) as bus:
        bus.publish_many(CHANNEL, [holdfast.Event({"total": n}, f"o-{n}") for n in range(first, last + 1)])


def loaded(folder: Path) -> list[int]:
    with duckdb.connect(str(folder / "warehouse.duckdb"), read_only=True) as connection:
        return sorted(int(row[0][2:]) for row in connection.execute("SELECT id FROM events").fetchall())


def test_a_crash_in_the_middle_of_a_load_leaves_nothing_and_loses_nothing(
    database: str, tmp_path: Path
) -> None:
    publish(database, 1, 5)
    dying = FORKS.Process(target=plain_ingest.drive, args=(database, tmp_path, "loader.before_commit"))
    dying.start()
    dying.join()
    assert dying.exitcode == -signal.SIGKILL
    with duckdb.connect(str(tmp_path / "warehouse.duckdb")) as connection:
        assert connection.execute("SELECT count(*) FROM events").fetchall() == [(0,)]
    plain_ingest.drive(database, tmp_path, ahead=121)
    assert loaded(tmp_path) == [1, 2, 3, 4, 5]


def test_an_outage_of_the_warehouse_delays_and_loses_nothing(database: str, tmp_path: Path) -> None:
    """The source is read on meanwhile: its events are durable in the WAL, and the cursor moves."""
    driver = SparklessIngest(database, tmp_path)
    file = tmp_path / "warehouse.duckdb"
    file.mkdir()  # nobody can open it
    for first in (1, 4):
        publish(database, first, first + 2)
        assert driver.step(10)
        assert {result for _, result in driver.loader.run_once(at_once=True)} == {Result.RETRY}
    assert len(driver.wal.pending()) == 2
    file.rmdir()
    assert [result for _, result in driver.loader.run_once(at_once=True)] == [Result.LOADED] * 2
    driver.close()
    assert loaded(tmp_path) == [1, 2, 3, 4, 5, 6]


@pytest.mark.timeout(300)
def test_while_the_store_is_down_what_the_wal_has_still_goes_in(tmp_path: Path) -> None:
    with Postgres(settings={"fsync": "off"}) as server:
        url = server.create_database("shop")
        publish(url, 1, 3)
        driver = SparklessIngest(url, tmp_path)
        driver.step(10)
        publish(url, 4, 6)
        server.kill()
        assert [result for _, result in driver.loader.run_once()] == [Result.LOADED]
        with pytest.raises(Unavailable):
            driver.step(10)
        driver.warehouse.close()
        assert loaded(tmp_path) == [1, 2, 3]
        server.start()
        while driver.step(10):
            driver.loader.run_once()
        driver.close()
        assert loaded(tmp_path) == [1, 2, 3, 4, 5, 6]


def test_after_a_power_failure_all_that_the_cursor_passed_is_on_the_disk(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever was not synced by the time the cursor moves would be gone: every file and folder must be."""
    synced: set[int] = set()
    sync = os.fsync

    def recorded(descriptor: int) -> None:
        sync(descriptor)
        synced.add(os.fstat(descriptor).st_ino)

    monkeypatch.setattr(os, "fsync", recorded)
    publish(database, 1, 5)
    driver = SparklessIngest(database, tmp_path)
    at_the_move: list[set[int]] = []
    move = driver.cursors.move

    def watched(*args: object) -> bool:
        at_the_move.append(set(synced))
        return move(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(driver.cursors, "move", watched)
    driver.step(10)
    wal = tmp_path / "wal"
    needed = [path for path in wal.rglob("*") if "segments" in path.parts or "pending" in path.parts]
    assert len([path for path in needed if path.is_file()]) == 2
    assert {path.stat().st_ino for path in needed} <= at_the_move[0]
    driver.close()
