"""`holdfast up` and its children killed with SIGKILL: nothing is lost, and no process is left behind."""

from __future__ import annotations

import asyncio
import gzip
import json
import signal
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import duckdb
import pytest

import holdfast
from holdfast.cli.demo.shop import ORDERS
from holdfast.embedded import Postgres
from holdfast.model.states import State
from kit import until

if TYPE_CHECKING:
    from running import Up

PARENT = """
import asyncio, os
from holdfast.server.services import ChildProcess

asyncio.run(ChildProcess("worker", ["worker", "shop:app"], os.environ).run())
"""

SHOP = """
import asyncio, os, pathlib
import holdfast

app = holdfast.App()


@app.handler("orders", "billing", start="earliest")
async def bill(event):
    pathlib.Path("begun").write_text(str(os.getpid()))
    while not pathlib.Path("go").exists():
        await asyncio.sleep(0.01)
"""

ARCHIVE = """
archiver:
  streams:
    - {stream: "gbe.events.audit.*", destination: folder, path: cold, batch_size: 1000, batch_timeout: 1h}
"""


AUDIT, SWEEPS = "gbe.events.audit.change", "gbe.events.system.sweep"
PLAIN = {"HOLDFAST_URL": "", "DATABASE_URL": "", "HOLDFAST_SWEEPER__INTERVAL": "1s"}


def living(folder: Path) -> dict[int, str]:
    """The processes that work in a folder or below it, with their command lines."""
    found = {}
    for process in Path("/proc").iterdir():
        try:
            if process.name.isdigit() and (process / "cwd").resolve().is_relative_to(folder):
                found[int(process.name)] = (process / "cmdline").read_text().replace("\0", " ")
        except OSError:
            continue  # it has ended, or is not ours to look at
    return found


async def none_left(folder: Path, patience: float = 30) -> None:
    async def gone() -> bool:
        return not living(folder)

    await until(gone, patience)


def kill(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGKILL)
    process.wait(timeout=60)


async def ready(process: subprocess.Popen[str], part: str) -> str:
    """Read status lines until a part runs; answers its status."""
    assert process.stdout is not None
    while text := await asyncio.to_thread(process.stdout.readline):
        line = json.loads(text)
        if (line["part"], line["phase"]) == (part, "running"):
            return str(line["status"])
    raise AssertionError(f"{part} never ran")


async def at_work(process: subprocess.Popen[str]) -> None:
    """Read status lines until both drivers are past the start of Spark."""
    assert process.stdout is not None
    told: dict[str, str] = {}
    while not all(told.get(part, "").startswith("at work") for part in ("archive", "ingest")):
        line = json.loads(await asyncio.to_thread(process.stdout.readline))
        told[line["part"]] = line["status"]


def archived(folder: Path) -> list[str]:
    """The ids of all archived events."""
    texts = (gzip.decompress(path.read_bytes()) for path in folder.rglob("*.jsonl.gz"))
    return sorted(json.loads(line)["message_id"] for text in texts for line in text.splitlines())


async def test_a_child_drains_and_ends_when_its_parent_is_killed(
    python: Up, database: str, tmp_path: Path
) -> None:
    (tmp_path / "shop.py").write_text(SHOP)
    async with holdfast.connect(database) as hf:
        await hf.publish("orders", {"total": 12}, id="o-1")
        parent = python("-c", PARENT)

        async def begun() -> bool:
            return (tmp_path / "begun").exists() and bool((tmp_path / "begun").read_text())

        await until(begun, 60)
        child = int((tmp_path / "begun").read_text())
        kill(parent)
        assert child in living(tmp_path)  # a handler runs: it gets its time
        (tmp_path / "go").touch()
        await none_left(tmp_path)
        [job] = await hf.find_jobs("orders", "o-1")
        assert (job.state, job.abandonments) == (State.DONE, 0)


@asynccontextmanager
async def private_store(folder: Path) -> AsyncIterator[holdfast.Bus]:
    """The private store of a folder, as a second user of it."""
    server = await asyncio.to_thread(Postgres.shared(folder / ".holdfast" / "postgres").start)
    try:
        async with holdfast.connect(server.url) as bus:
            yield bus
    finally:
        await asyncio.to_thread(server.stop)


async def ids(bus: holdfast.Bus, channel: str) -> set[str]:
    return {entry.event.id for entry in await bus.read(channel, limit=1000)}


async def test_up_killed_and_started_again_has_lost_nothing(up: Up, tmp_path: Path) -> None:
    arguments = ("--json", "--demo", "--no-archiver", "--no-ingest", "--log-folder", "logs")
    process = up(*arguments)  # the demo leaves the store of the environment alone
    await ready(process, "traffic")
    async with private_store(tmp_path) as hf:
        await until(lambda: ids(hf, ORDERS))  # the shop is open
        await hf.subscribe("mine", "me")
        await hf.publish("mine", {"n": 1}, id="m-1")
        [job] = await hf.poll("mine", "me")
        kill(process)
        await hf.finalize(job, success=True)  # the store is still there for those who use it
        before = await ids(hf, ORDERS)
    await none_left(tmp_path)

    process = up(*arguments)
    await ready(process, "traffic")
    async with private_store(tmp_path) as hf:

        async def going_on() -> bool:
            now = await ids(hf, ORDERS)
            assert before <= now
            return len(now) > len(before)

        await until(going_on)
        [record] = await hf.find_jobs("mine", "m-1")
        assert record.state is State.DONE
    process.terminate()
    await asyncio.to_thread(process.communicate, timeout=60)
    assert process.returncode == 0
    await none_left(tmp_path)
    _, *tracebacks = (tmp_path / "logs" / "up.log").read_text().split("Traceback")
    assert all("cli/demo/staff.py" in each for each in tracebacks), "only bugs of the shop are told at length"


@pytest.mark.timeout(300)
@pytest.mark.slow
async def test_a_spark_driver_flushes_and_ends_when_up_is_killed(up: Up, tmp_path: Path) -> None:
    (tmp_path / "holdfast.yaml").write_text(ARCHIVE)
    arguments = ("--json", "--no-sweeper", "--config", "holdfast.yaml", "--log-folder", "logs")
    process = up(*arguments, HOLDFAST_URL="", DATABASE_URL="")
    await ready(process, "archive")
    async with private_store(tmp_path) as hf:
        for number in range(10):
            await hf.publish("gbe.events.audit.change", {"n": number}, id=f"a-{number}")

        async def at_work() -> bool:
            return (tmp_path / "cold").exists()

        await until(at_work, 120)
    kill(process)
    await none_left(tmp_path, 150)
    assert archived(tmp_path / "cold") == [f"a-{number}" for number in range(10)]


async def caught_up(hf: holdfast.Bus) -> bool:
    """Whether archiver and ingest have all that is there, on both channels and on no other."""
    [store] = [each.backend for each in hf.partitions.all]
    cursors = {(each.channel, each.name): each.position for each in await store.cursors.all()}
    ends = {channel: (await store.log.extent(channel)).last for channel in (AUDIT, "orders")}
    return cursors == {(c, name): last for c, last in ends.items() for name in ("archiver", "ingest")}


async def comes_to_rest(hf: holdfast.Bus, cold: Path) -> None:
    """What the system tells about itself goes on, and makes no work for the archiver."""
    await until(lambda: caught_up(hf), 120)
    before, told = archived(cold), len(await ids(hf, SWEEPS))

    async def swept() -> bool:
        return len(await ids(hf, SWEEPS)) >= told + 5

    await until(swept)
    assert archived(cold) == before
    assert await caught_up(hf)


@pytest.mark.timeout(500)
@pytest.mark.slow
async def test_plain_up_is_the_whole_system(up: Up, tmp_path: Path) -> None:
    """No store and no configuration: everything is archived and ingested, also after a kill in between."""
    home, published = tmp_path / ".holdfast", []
    for ending in (signal.SIGKILL, signal.SIGINT):
        process = up("--json", "--log-folder", "logs", **PLAIN)
        await at_work(process)
        async with private_store(tmp_path) as hf:
            for channel in (AUDIT, "orders"):
                published.append(f"{channel}-{ending}")
                await hf.publish(channel, {"n": 1}, id=published[-1])
            await comes_to_rest(hf, home / "cold")
            published.append(f"last-{ending}")
            await hf.publish("orders", {"n": 2}, id=published[-1])  # the end comes before it is archived
        process.send_signal(ending)
        await asyncio.to_thread(process.communicate, timeout=150)
        await none_left(tmp_path, 150)
    assert process.returncode == 0
    assert [path for path in (home, *home.rglob("*")) if path.stat().st_mode & 0o077] == []
    assert archived(home / "cold") == sorted(published)
    with duckdb.connect(str(home / "warehouse.duckdb")) as warehouse:
        [count] = warehouse.execute("SELECT count(DISTINCT id), count(*) FROM events").fetchall()
    assert count[0] == count[1]
    assert count[0] >= len(published) - 1  # the last one may be in the log only: the ingest does not drain it
