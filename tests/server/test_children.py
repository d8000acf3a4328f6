"""Parts that are processes of their own: archiver and ingest under `holdfast up`, drained and flushed."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import re
import signal
import sys
from functools import partial
from pathlib import Path

import duckdb
import pytest
from running import Up
from scene import with_store

import holdfast
from holdfast.model.errors import HoldfastError
from holdfast.pipeline.connection import Connection
from holdfast.pipeline.reports import Reporter
from holdfast.server.pipeline_port import driver_status
from holdfast.server.services import ChildProcess
from kit import until

CONFIG = """
archiver:
  streams:
    - stream: "gbe.events.audit.*"
      destination: folder
      path: "{folder}"
      batch_size: 2
      batch_timeout: 1h
"""

INGEST = """
ingest:
  channels: ["gbe.events.plays"]
  warehouse: "duckdb://{folder}/warehouse.duckdb"
  wal:
    path: "{folder}/wal"
"""


def archived(folder: Path) -> set[str]:
    lines = [
        line
        for path in folder.rglob("*.jsonl.gz")
        for line in gzip.decompress(path.read_bytes()).splitlines()
    ]
    return {json.loads(line)["message_id"] for line in lines}


@pytest.mark.timeout(240)
@pytest.mark.slow
async def test_the_archiver_runs_inside_up_and_flushes_when_it_is_stopped(
    up: Up, database: str, tmp_path: Path
) -> None:
    config = tmp_path / "holdfast.yaml"
    config.write_text(CONFIG.format(folder=tmp_path / "cold"))
    channel = "gbe.events.audit.change"
    async with holdfast.connect(database) as hf:
        for number in (1, 2):
            await hf.publish(channel, {"n": number}, id=f"a-{number}")
        process = up("--json", "--no-sweeper", "--config", str(config))

        async def at_work() -> bool:
            assert process.poll() is None
            return len(archived(tmp_path / "cold")) == 2

        await until(at_work, 90)
        await hf.publish(channel, {"n": 3}, id="a-3")
    process.send_signal(signal.SIGTERM)
    _, errors = await asyncio.to_thread(process.communicate, timeout=150)
    assert process.returncode == 0, errors
    assert archived(tmp_path / "cold") == {"a-1", "a-2", "a-3"}


@pytest.mark.timeout(240)
@pytest.mark.slow
async def test_the_ingest_runs_inside_up(up: Up, database: str, tmp_path: Path) -> None:
    config, warehouse = tmp_path / "holdfast.yaml", tmp_path / "warehouse.duckdb"
    config.write_text(INGEST.format(folder=tmp_path))
    async with holdfast.connect(database) as hf:
        for number in (1, 2):
            await hf.publish("gbe.events.plays", {"n": number}, id=f"p-{number}")
    process = up("--json", "--no-sweeper", "--config", str(config))

    async def confirmed() -> bool:
        assert process.poll() is None
        return bool(list((tmp_path / "wal" / "confirmed").glob("*.json")))

    await until(confirmed, 90)
    process.send_signal(signal.SIGTERM)
    _, errors = await asyncio.to_thread(process.communicate, timeout=150)
    assert process.returncode == 0, errors
    with duckdb.connect(str(warehouse), read_only=True) as connection:
        assert connection.execute("SELECT id FROM events ORDER BY id").fetchall() == [("p-1",), ("p-2",)]


async def test_a_driver_says_what_it_does(database: str) -> None:
    async with holdfast.connect(database) as hf:
        [first] = hf.partitions.all
        told = partial(driver_status, first, "gbe", "archive")
        assert await told(os.getpid()) == "Spark is starting"
        reporter = Reporter("gbe", "archive")
        await with_store(database, reporter.look)
        assert await told(os.getpid()) == "at work"
        assert re.fullmatch(rf"waits while .*:{os.getpid()} is at work", await told(1))

        def fail(connection: Connection) -> None:
            with pytest.raises(HoldfastError), reporter.at_work(connection):
                raise HoldfastError("the disk is full")

        await with_store(database, fail)
        assert await told(os.getpid()) == "it fails: HoldfastError: the disk is full"
        assert await told(1) == "Spark is starting"


async def test_a_child_that_ends_is_a_failure_with_its_code() -> None:
    part = ChildProcess("archive", ["archive", "--no-such-option"], os.environ)
    with pytest.raises(HoldfastError, match="archive ended with 2"):
        await part.run()


async def test_a_child_that_ends_says_why(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    log = tmp_path / "archive.log"
    log.write_text("an older run ended\n")
    part = ChildProcess("archive", ["archive", "--no-such-option"], os.environ, tmp_path)
    with pytest.raises(HoldfastError, match=r"ended with 2: .*No such option.* \(see .*archive.log\)"):
        await part.run()
    assert "Usage" in caplog.text
    assert "an older run" not in caplog.text


async def test_a_child_that_is_told_to_stop_before_it_has_begun_stops_as_it_should(tmp_path: Path) -> None:
    config = tmp_path / "holdfast.yaml"
    os.mkfifo(config)
    part = ChildProcess("ingest", ["ingest", "--config", str(config)], os.environ, tmp_path)
    running = asyncio.create_task(part.run())
    with await asyncio.to_thread(config.open, "w"):  # returns when the child has opened it to read
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running


async def test_a_child_that_will_not_stop_is_killed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    deaf = tmp_path / "holdfast.py"
    deaf.write_text(
        "import signal, pathlib, time; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "pathlib.Path('ready').touch(); time.sleep(600)\n"
    )
    shell = tmp_path / "python"
    shell.write_text(f"#!/bin/sh\ncd {tmp_path}\nexec {sys.executable} {deaf}\n")
    shell.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(shell))
    monkeypatch.setattr("holdfast.server.services.GRACE", 0.2)
    part = ChildProcess("archive", ["archive"], os.environ)
    running = asyncio.create_task(part.run())

    async def ready() -> bool:
        return (tmp_path / "ready").exists()

    await until(ready, 30)
    running.cancel()
    with pytest.raises(TimeoutError):
        await running
