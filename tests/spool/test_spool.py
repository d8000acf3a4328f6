"""The spool: publishes that are acknowledged while no store answers are never lost, doubled or reordered."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import failpoints
from holdfast.bus.spool import Spool, Spooled
from holdfast.contracts import Backend
from holdfast.embedded import Redis
from holdfast.model.event import Event
from holdfast.server.metrics import bus_metrics
from holdfast.wiring import backend as connect_backend
from kit import until

CHANNEL = "orders"


def spooled(number: int, **fields: object) -> Spooled:
    return Spooled(CHANNEL, Event({"n": number}, str(number), **fields), None, 0)  # type: ignore[arg-type]


@pytest.fixture
def spool(tmp_path: Path) -> Iterator[Spool]:
    opened = Spool(tmp_path / "spool")
    opened.open()
    yield opened
    opened.close()


def reopened(spool: Spool, path: Path) -> Spool:
    spool.close()
    again = Spool(path)
    again.open()
    return again


def test_events_come_back_whole_and_in_order(tmp_path: Path, spool: Spool) -> None:
    whole = Spooled(
        CHANNEL,
        Event(b"\x00\xff", "a", "shop", "order", "k", datetime(2026, 2, 14, tzinfo=UTC), {"t": "x"}),
        datetime(2030, 1, 1, tzinfo=UTC),
        7,
    )
    spool.append([whole, spooled(1)])
    spool.append([spooled(2)])
    again = reopened(spool, tmp_path / "spool")
    assert again.peek(10) == [whole, spooled(1), spooled(2)]
    assert len(again) == 3
    again.advance(2)
    again = reopened(again, tmp_path / "spool")
    assert again.peek(10) == [spooled(2)]
    again.close()


def test_depth_age_and_refusals_are_metrics(
    tmp_path: Path, spool: Spool, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.monotonic()
    clock = [now]
    monkeypatch.setattr("holdfast.bus.spool.time.monotonic", lambda: clock[0])
    bus = holdfast.Bus([], spool=spool)

    def told() -> dict[str, float]:
        return {
            sample.name.removeprefix("holdfast_spool_") + sample.labels.get("by", ""): sample.value
            for metric in bus_metrics(bus)
            if metric.name.startswith("holdfast_spool_")
            for sample in metric.samples
        }

    empty = {"events": 0, "bytes": 0, "oldest_age_seconds": 0}
    assert told() == empty | {"refused_totalfull": 0, "refused_totalstore": 0, "refused_totaldamaged": 0}
    spool.append([spooled(1)])
    clock[0] += 60
    spool.append([spooled(2), spooled(3)])
    clock[0] += 5
    found = told()
    assert (found["events"], found["oldest_age_seconds"]) == (3, 65)
    assert spool._db is not None
    assert (
        found["bytes"]
        == spool._db.execute("SELECT sum(length(head) + length(data)) FROM events").fetchone()[0]
    )
    spool.advance(1)
    assert told()["oldest_age_seconds"] == 5
    spool.set_aside(spooled(2), ValueError("no"))
    spool.advance(2)
    assert (told()["events"], told()["oldest_age_seconds"], told()["refused_totalstore"]) == (0, 0, 1)
    full = Spool(tmp_path / "full", max_bytes=10)
    full.open()
    with pytest.raises(holdfast.Overloaded):
        full.append([spooled(1), spooled(2)])
    full.close()
    assert full.refused["full"] == 2


def test_only_its_user_can_read_it(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        spool = Spool(tmp_path / "deep" / "spool")
        spool.open()
        spool.append([spooled(1), spooled(2)])
        spool.advance(1)
        spool.set_aside(spooled(2), ValueError("no"))
        spool.close()
    finally:
        os.umask(before)
    made = list((tmp_path / "deep").rglob("*"))
    assert len(made) >= 4
    assert [path for path in (tmp_path / "deep", *made) if path.stat().st_mode & 0o077] == []


def changed(spool: Spool, path: Path, statement: str) -> Spool:
    """The spool, opened again after its database was changed."""
    spool.close()
    with sqlite3.connect(path / "events.sqlite") as database:
        database.execute(statement)
    database.close()
    return reopened(spool, path)


def test_what_an_earlier_process_left_has_an_age(tmp_path: Path, spool: Spool) -> None:
    spool.append([spooled(1)])
    again = changed(spool, tmp_path / "spool", "UPDATE events SET appended_at = appended_at - 3600")
    assert 3600 <= again.oldest_age < 7200
    again.close()


def test_a_drained_spool_gives_its_room_back(tmp_path: Path, spool: Spool) -> None:
    def room() -> int:
        return sum(each.stat().st_size for each in (tmp_path / "spool").iterdir())

    for number in range(30):
        spool.append([spooled(number, headers={"fill": "x" * 100_000})])
    assert room() > 3_000_000
    spool.advance(30)
    assert room() < 100_000
    spool.append([spooled(30)])
    assert spool.peek(5) == [spooled(30)]


def crashed(path: Path, copy: Path) -> Path:
    """The folder of an open spool as a crash would leave it."""
    shutil.copytree(path, copy)
    assert (copy / "events.sqlite-wal").stat().st_size > 0
    return copy


def test_a_torn_append_is_cut_since_nobody_was_told_that_it_is_safe(tmp_path: Path, spool: Spool) -> None:
    spool.append([spooled(1)])
    spool.append([spooled(2)])
    path = crashed(tmp_path / "spool", tmp_path / "torn")
    wal = path / "events.sqlite-wal"
    os.truncate(wal, wal.stat().st_size - 5)
    again = Spool(path)
    again.open()
    assert again.peek(10) == [spooled(1)]
    assert again.refused["damaged"] == 0
    again.append([spooled(3)])
    assert again.peek(10) == [spooled(1), spooled(3)]
    again.close()


def test_a_damaged_log_of_a_crashed_process_is_kept_and_named(
    tmp_path: Path, spool: Spool, caplog: pytest.LogCaptureFixture
) -> None:
    """SQLite itself takes a wrong checksum for the end of the log, and says nothing."""
    for number in range(3):
        spool.append([spooled(number)])
    path = crashed(tmp_path / "spool", tmp_path / "damaged")
    wal = path / "events.sqlite-wal"
    content = bytearray(wal.read_bytes())
    content[len(content) // 2] ^= 1
    wal.write_bytes(content)
    again = Spool(path)
    with caplog.at_level(logging.ERROR):
        again.open()
    kept = path / "events.sqlite-wal.damaged-1"
    assert again.peek(10) == [spooled(0)]
    assert kept.read_bytes() == content
    assert str(kept) in caplog.text
    assert again.refused["damaged"] == 1
    again.close()


def test_a_damaged_event_is_set_aside_and_named(
    tmp_path: Path, spool: Spool, caplog: pytest.LogCaptureFixture
) -> None:
    spool.append([spooled(1), spooled(2), spooled(3)])
    again = changed(
        spool, tmp_path / "spool", "UPDATE events SET data = 'X' || substr(data, 2) WHERE number = 1"
    )
    assert again.peek(10) == [spooled(1)]
    again.advance(1)
    with caplog.at_level(logging.ERROR):
        assert again.peek(10) == [spooled(3)]
    assert "event 1" in caplog.text
    assert b'"number":1' in (tmp_path / "spool" / "damaged").read_bytes()
    again.close()


@pytest.mark.parametrize("size", [0, 100, 5000], ids=["empty", "its head", "torn"])
def test_a_torn_database_is_kept_and_named_and_the_spool_goes_on(
    tmp_path: Path, spool: Spool, size: int, caplog: pytest.LogCaptureFixture
) -> None:
    spool.append([spooled(1), spooled(2)])
    spool.close()
    file = tmp_path / "spool" / "events.sqlite"
    torn = file.read_bytes()[:size]
    file.write_bytes(torn)
    again = Spool(tmp_path / "spool")
    with caplog.at_level(logging.ERROR):
        again.open()
    kept = tmp_path / "spool" / "events.sqlite.damaged-1"
    assert kept.read_bytes() == torn
    assert str(kept) in caplog.text
    assert again.refused["damaged"] == 1
    again.append([spooled(3)])
    assert again.peek(10) == [spooled(3)]
    again.close()


def test_a_spool_of_the_former_format_is_refused_while_it_holds_events(tmp_path: Path) -> None:
    path = tmp_path / "spool"
    path.mkdir()
    segment = path / "0000000000000000.log"
    segment.write_bytes(b"0 []\n")
    with pytest.raises(holdfast.InvalidInput, match="earlier version"):
        Spool(path).open()
    segment.write_bytes(b"")
    empty = Spool(path)
    empty.open()
    assert len(empty) == 0
    empty.close()


def test_the_bound_is_refused_and_nothing_is_half_there(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "spool", max_bytes=500)
    spool.open()
    spool.append([spooled(1)])
    with pytest.raises(holdfast.Overloaded, match="holds"):
        spool.append([spooled(number) for number in range(2, 20)])
    assert spool.peek(10) == [spooled(1)]
    spool.close()


def test_one_process_at_a_time(tmp_path: Path, spool: Spool) -> None:
    with pytest.raises(holdfast.InvalidInput, match="in use"):
        Spool(tmp_path / "spool").open()


async def ids(backend: Backend) -> list[str]:
    return [entry.event.id for entry in await backend.log.read(CHANNEL, None, 1000)]


async def test_publishes_go_on_without_a_store_and_arrive_in_order(tmp_path: Path) -> None:
    """The whole way: acknowledged while the server is down, drained in order when it is back."""
    server = Redis(tmp_path / "redis", appendfsync="always").start()
    url = server.url
    try:
        async with holdfast.connect(url, spool=tmp_path / "spool") as hf:
            assert (await hf.publish(CHANNEL, {}, id="0")).position
            server.kill()
            receipts = [await hf.publish(CHANNEL, {}, id=str(number)) for number in range(1, 6)]
            assert [receipt.position for receipt in receipts] == [""] * 5
            server.start()
            backend = connect_backend(url)
            await backend.open()

            async def all_there() -> bool:
                return len(await ids(backend)) == 6

            await until(all_there, 30)
            assert await ids(backend) == [str(number) for number in range(6)]
            await backend.close()
    finally:
        server.stop()


PUBLISHER = """
import asyncio, sys, holdfast
async def main(url, spool):
    async with holdfast.connect(url, spool=spool) as hf:
        for number in range(5):
            receipt = await hf.publish("orders", {}, id=str(number))
            print(receipt.id, flush=True)
        await asyncio.sleep(60)
asyncio.run(main(*sys.argv[1:]))
"""


@pytest.mark.parametrize("point", ["spool.after_append", "spool.after_publish", "spool.after_advance"])
async def test_a_publisher_killed_at_any_step_loses_and_doubles_nothing(tmp_path: Path, point: str) -> None:
    server = Redis(tmp_path / "redis").start()
    url = server.url
    server.stop()

    def publisher(environment: dict[str, str]) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-c", PUBLISHER, url, str(tmp_path / "spool")],
            env=os.environ | environment,
            stdout=subprocess.PIPE,
            text=True,
        )

    acknowledged: set[str] = set()
    first = publisher({failpoints.VARIABLE: f"{point}=kill"} if point == "spool.after_append" else {})
    assert first.stdout is not None
    for line in first.stdout:  # ends where the process is killed
        acknowledged.add(line.strip())
        if len(acknowledged) == 5:
            first.kill()
    first.wait()
    server.start()
    if point != "spool.after_append":
        second = publisher({failpoints.VARIABLE: f"{point}=kill"})
        await asyncio.to_thread(second.wait, 30)
        assert second.returncode == -9
        assert second.stdout is not None
        second.stdout.close()
    backend = connect_backend(url)
    await backend.open()
    async with holdfast.connect(url, spool=tmp_path / "spool") as hf:
        await hf.publish(CHANNEL, {}, id="last")

        async def last_there() -> bool:
            return "last" in await ids(backend)

        await until(last_there, 30)
    found = await ids(backend)
    assert acknowledged <= set(found)
    assert len(found) == len(set(found)), "each one once"
    numbers = [int(name) for name in found if name != "last"]
    assert numbers == sorted(numbers)
    await backend.close()
    server.stop()
    first.stdout.close()


async def test_what_no_store_will_ever_take_is_set_aside(tmp_path: Path) -> None:
    with Redis(tmp_path / "redis") as server:
        async with holdfast.connect(server.url) as hf:
            await hf.publish(CHANNEL, {"n": 1}, id="a")
        left = Spool(tmp_path / "spool")
        left.open()
        left.append([Spooled(CHANNEL, Event({"n": 2}, "a"), None, 0), spooled(1)])
        left.close()
        async with holdfast.connect(server.url, spool=tmp_path / "spool") as hf:

            async def drained() -> bool:
                return len(await hf.read(CHANNEL)) == 2

            await until(drained, 30)
        assert b'"a"' in (tmp_path / "spool" / "refused").read_bytes()


async def test_a_publish_that_was_given_up_takes_nobody_elses_event_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its thread still writes when the next publish comes, and then meets a full disk."""
    armed, blocked, go = threading.Event(), threading.Event(), threading.Event()

    class FullAtFirst(sqlite3.Connection):
        def execute(self, sql: str, *arguments: Any) -> sqlite3.Cursor:
            if sql != "COMMIT" or not armed.is_set() or blocked.is_set():
                return super().execute(sql, *arguments)
            blocked.set()
            go.wait(60)
            raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr("holdfast.bus.spool.sqlite3.connect", partial(sqlite3.connect, factory=FullAtFirst))
    async with holdfast.connect("redis://127.0.0.1:1", spool=tmp_path / "spool") as bus:
        armed.set()
        given_up = asyncio.create_task(bus.publish(CHANNEL, {}, id="given-up"))

        async def writes() -> bool:
            return blocked.is_set()

        await until(writes, 30)
        given_up.cancel()
        await asyncio.wait([given_up])
        kept = asyncio.create_task(bus.publish(CHANNEL, {}, id="kept"))
        await asyncio.wait([kept], timeout=0.5)
        go.set()
        assert (await kept).id == "kept"
    spool = Spool(tmp_path / "spool")
    spool.open()
    assert [entry.event.id for entry in spool.peek(10)] == ["kept"]
    spool.close()
