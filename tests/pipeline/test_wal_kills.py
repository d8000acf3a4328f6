"""SIGKILL at every step of commit and loader, then recovery: I9, I10 and I11 from the files themselves."""

from __future__ import annotations

import multiprocessing
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import duckdb
import plain_ingest
import pytest
from plain_ingest import CHANNEL

import holdfast
from holdfast.pipeline.connection import Connection
from holdfast.pipeline.ingest.commit import CONSUMER
from holdfast.pipeline.stores import open_store
from holdfast.pipeline.wal import BatchKey, Wal, WalSettings, segments

# Every process is a fork of one that has imported everything and done nothing.
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["plain_ingest"])
POINTS = [
    "wal.after_stage",
    "wal.before_pending",
    "wal.after_pending",
    "wal.after_cursor",
    "loader.after_lease",
    "loader.before_commit",
    "loader.after_commit",
    "loader.after_confirm",
    "loader.after_failed",
]
LEASE = 121


class Run:
    """One store, one folder, and as many drivers as it takes."""

    def __init__(self, url: str, folder: Path) -> None:
        self.url, self.folder, self.ahead = url, folder, 0
        settings = WalSettings.of({}, path=str(folder / "wal"))
        self.wal = Wal(open_store(settings.path), settings)

    def publish(self, first: int, count: int) -> None:
        """Events, of which every fifth has a total that no column takes, and every seventh is no JSON."""

        def data(number: int) -> Any:
            return b"\xff%d" % number if number % 7 == 0 else {"total": "x" if number % 5 == 0 else number}

        events = [holdfast.Event(data(number), f"o-{number}") for number in range(first, first + count)]
        with holdfast.connect_sync(self.url) as bus:
            bus.publish_many(CHANNEL, events)

    def drive(self, **spec: Any) -> int | None:
        """Run a driver to its end, or its death; its clock is past the leases of those before it."""
        process = PROCESSES.Process(
            target=plain_ingest.drive, args=(self.url, self.folder), kwargs={"ahead": self.ahead, **spec}
        )
        self.ahead += LEASE
        process.start()
        process.join(60)
        return process.exitcode

    def cursor(self) -> str:
        with Connection([self.url]) as connection:
            found = connection.run(connection.backends[0].cursors(CHANNEL))
        return next(cursor.position or "" for cursor in found if cursor.name == CONSUMER)

    def ask(self, question: str) -> list[tuple[Any, ...]]:
        file = self.folder / "warehouse.duckdb"
        if not file.exists():
            return []
        with duckdb.connect(str(file)) as connection:
            tables = {row[0] for row in connection.execute("SHOW TABLES").fetchall()}
            return connection.execute(question).fetchall() if "events" in tables else []

    def judge(self) -> None:
        """What must hold after any kill, whether or not anybody has recovered yet."""
        in_wal: set[str] = set()
        for name in self.wal.journal.names("pending"):
            rows = segments.read_all(self.wal.store, self.wal.batch(name).segments)
            assert rows.num_rows == self.wal.batch(name).rows
            in_wal |= set(rows["position"].to_pylist())
        below = self.log_up_to(self.cursor())
        assert below <= in_wal, "I9: the cursor is not beyond what the WAL holds"
        held = Counter(row[0] for row in self.ask("SELECT transaction_id FROM events"))
        assert not held or max(held.values()) == 1, "I10: every event once"
        per_batch = Counter(row[0] for row in self.ask("SELECT batch FROM events"))
        ledger = {row[0]: row[1] for row in self.ask("SELECT key, inserted FROM holdfast_ledger")}
        assert {name: count for name, count in ledger.items() if count} == dict(per_batch), "I11: all or none"

    def log_up_to(self, cursor: str) -> set[str]:
        with holdfast.connect_sync(self.url) as bus:
            return {entry.position for entry in bus.read(CHANNEL, limit=1000) if entry.position <= cursor}

    def settled(self, count: int) -> None:
        """I10 and I15, once a driver has come to its end."""
        survey = self.wal.survey()
        assert survey.pending == []
        assert survey.quarantined == set()
        failed: Counter[str] = Counter()
        for name in survey.confirmed:
            failed.update(failure.id for failure in self.wal.failures(name))
        loaded = Counter(row[0] for row in self.ask("SELECT id FROM events"))
        bad = {f"o-{n}" for n in range(1, count + 1) if n % 5 == 0 or n % 7 == 0}
        assert set(failed) == bad
        assert loaded == Counter({f"o-{n}": 1 for n in range(1, count + 1)} | {}) - Counter(
            dict.fromkeys(bad, 1)
        )
        mirrored = {row[0] for row in self.ask("SELECT event_id FROM failed_events")}
        assert mirrored == bad


def test_a_kill_at_every_step_in_turn_loses_and_doubles_nothing(database: str, tmp_path: Path) -> None:
    run = Run(database, tmp_path)
    for number, point in enumerate(POINTS):
        run.publish(1 + 8 * number, 8)
        assert run.drive(kill=point) == -signal.SIGKILL, point
        run.judge()
    assert run.drive() == 0
    run.judge()
    run.settled(8 * len(POINTS))


@pytest.mark.slow
@pytest.mark.parametrize("skip", [0, 1, 2])
@pytest.mark.parametrize("point", POINTS)
def test_a_kill_at_any_step_of_any_batch(database: str, tmp_path: Path, point: str, skip: int) -> None:
    run = Run(database, tmp_path)
    run.publish(1, 40)
    for _ in range(2):
        assert run.drive(kill=point, skip=skip) in (-signal.SIGKILL, 0)
        run.judge()
    assert run.drive() == 0
    run.judge()
    run.settled(40)
    assert {BatchKey.parse(name).channel for name in run.wal.survey().confirmed} == {CHANNEL}


@pytest.mark.parametrize(("counted", "copies"), [(False, 1), (True, 2)])
def test_counted_ids_would_double_what_is_staged_twice(
    database: str, tmp_path: Path, counted: bool, copies: int
) -> None:
    """The positive control. A driver dies after the commit; the next one starts at the cursor, over a batch
    that is pending, and stages the same events again: with the seed's ids they are others each time."""
    run = Run(database, tmp_path)
    run.publish(1, 3)
    assert run.drive(kill="wal.after_pending", counted=counted) == -signal.SIGKILL
    run.publish(11, 3)
    assert run.drive(counted=counted, follow=False) == 0
    found = Counter(row[0] for row in run.ask("SELECT id FROM events"))
    assert max(found.values()) == copies
