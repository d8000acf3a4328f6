"""The commit without Spark: kills at every step, rivals, other cuts, and what the cursor guards."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from holdfast import Event, failpoints
from holdfast.contracts import Backend
from holdfast.model.errors import ObjectConflict
from holdfast.pipeline.archive.archiver import LAG_INTERVAL, ArchiveMetrics, LagWatch
from holdfast.pipeline.archive.commit import Committer, Orphans, Superseded
from holdfast.pipeline.archive.policy import ArchivePolicy
from holdfast.pipeline.archive.writer import ObjectWriter
from holdfast.pipeline.arrow import to_batch
from holdfast.pipeline.connection import Connection
from holdfast.pipeline.offsets import ChannelPartition
from holdfast.pipeline.stores import ObjectStore, open_store
from holdfast.wiring import backend as connect_backend
from holdfast_chaos.checks.pipeline import check_archive
from holdfast_chaos.without_spark import archive
from kit import until

HERE = Path(__file__).parent
CHANNEL, NEWS = "gbe.events.audit.change", "gbe.events.system.archive"
SPOT = ChannelPartition(0, CHANNEL)
FAILPOINTS = ("before_put=kill:3", "after_put=kill:3", "after_manifest=kill:1", "after_event=kill:1")
FAILPOINTS += ("before_put=kill", "after_cursor=kill:1", "after_cursor=kill:3")


@pytest.fixture
async def backend(database: str) -> AsyncIterator[Backend]:
    opened = connect_backend(database)
    await opened.open()
    yield opened
    await opened.close()


@pytest.fixture
def folder(tmp_path: Path) -> str:
    return str(tmp_path / "cold")


@pytest.fixture
def cold(folder: str) -> ObjectStore:
    return open_store(folder)


def policy(folder: str, batch_size: int = 10) -> ArchivePolicy:
    return ArchivePolicy("gbe.events.audit.*", folder, batch_size=batch_size)


async def publish(backend: Backend, count: int, start: int = 0, channel: str = CHANNEL) -> list[str]:
    names = [f"e-{start + n}" for n in range(count)]
    await backend.log.publish(channel, [Event({"n": name}, name) for name in names])
    return names


async def cursor(backend: Backend) -> str | None:
    [found] = await backend.cursors.all(CHANNEL)
    return found.position


async def announced(backend: Backend) -> list[dict[str, object]]:
    return [json.loads(entry.event.data) for entry in await backend.log.read(NEWS, None, 1000)]


def process(url: str, folder: str, *, failpoint: str = "", **spec: object) -> subprocess.Popen[bytes]:
    spec = {"batch_size": 10, "rows": 25} | spec
    spec |= {"url": url, "destination": folder, "stream": "gbe.events.audit.*"}
    path = os.pathsep.join(filter(None, [str(HERE), os.environ.get("PYTHONPATH")]))
    environment = os.environ | {failpoints.VARIABLE: failpoint, "PYTHONPATH": path}
    script = HERE / "processes" / "archiver.py"
    return subprocess.Popen([sys.executable, script, json.dumps(spec)], env=environment)


async def ended(running: subprocess.Popen[bytes]) -> int:
    return await asyncio.to_thread(running.wait, 60)


# what a pass does


async def test_everything_is_archived_once_and_said_once(
    backend: Backend, cold: ObjectStore, folder: str
) -> None:
    names = await publish(backend, 60)
    assert await archive([backend], cold, policy(folder), 25) == 3
    assert await archive([backend], cold, policy(folder), 25) == 0
    found = check_archive(cold)
    assert (found.wrong, found.orphans, found.ids) == ([], [], set(names))
    news = await announced(backend)
    assert [each["count"] for each in news] == [25, 25, 10]
    assert {(each["stream"], each["channel"], each["destination"]) for each in news} == {
        ("audit", CHANNEL, cold.url)
    }
    assert news[-1]["last"] == await cursor(backend)


async def test_what_is_announced_makes_no_work_and_can_be_archived_by_name(
    backend: Backend, cold: ObjectStore, folder: str
) -> None:
    await publish(backend, 5)
    everything, system = ArchivePolicy(">", folder), ArchivePolicy("gbe.events.system.*", folder)
    assert await archive([backend], cold, everything, 25) == 1
    assert await archive([backend], cold, everything, 25) == 0
    assert await archive([backend], cold, system, 25) == 1, "the announcement of the first pass"
    assert await archive([backend], cold, system, 25) == 0, "and that of announcements is none"


async def test_a_cursor_that_was_lost_follows_the_manifests(
    backend: Backend, cold: ObjectStore, folder: str
) -> None:
    names = await publish(backend, 30)
    await archive([backend], cold, policy(folder), 10)
    position = await cursor(backend)
    await backend.cursors.detach(CHANNEL, "archiver")
    names += await publish(backend, 5, start=30)
    assert await archive([backend], cold, policy(folder), 10) == 1
    assert (await cursor(backend) or "") > (position or "")
    found = check_archive(cold)
    assert (found.wrong, found.orphans, found.ids) == ([], [], set(names))


async def test_the_destination_of_another_store_is_refused(
    backend: Backend, cold: ObjectStore, folder: str, new_database
) -> None:  # type: ignore[no-untyped-def]
    await publish(backend, 5)
    await archive([backend], cold, policy(folder), 25)
    other = connect_backend(new_database())
    await other.open()
    try:
        await publish(other, 5, start=100)
        with pytest.raises(ObjectConflict, match="belongs to another store"):
            await archive([other], cold, policy(folder), 25)
        [its] = await other.cursors.all(CHANNEL)
        assert its.position is None
    finally:
        await other.close()


async def test_two_stores_share_a_destination_as_partitions(
    backend: Backend, cold: ObjectStore, folder: str, new_database
) -> None:  # type: ignore[no-untyped-def]
    second = connect_backend(new_database())
    await second.open()
    try:
        names = await publish(backend, 12) + await publish(second, 7, start=100)
        await archive([backend, second], cold, policy(folder), 25)
        found = check_archive(cold)
        assert (found.wrong, found.orphans, found.ids) == ([], [], set(names))
        assert {identity[2] for identity in found.events} == {0, 1}
    finally:
        await second.close()


# kills


@pytest.mark.parametrize("failpoint", FAILPOINTS)
async def test_a_kill_at_any_step_loses_and_doubles_nothing(
    backend: Backend, database: str, cold: ObjectStore, folder: str, failpoint: str
) -> None:
    names = await publish(backend, 100)
    first = process(database, folder, failpoint=f"archive.{failpoint}")
    assert await ended(first) == -signal.SIGKILL
    between = check_archive(cold)
    assert between.wrong == []
    names += await publish(backend, 7, start=100)
    await archive([backend], cold, policy(folder), 25)
    found = check_archive(cold)
    assert (found.wrong, found.orphans, found.ids) == ([], [], set(names))
    news = await announced(backend)
    assert sum(int(str(each["count"])) for each in news) == len(names), "each commit is announced once"


@pytest.mark.parametrize("name", ["after_put", "after_manifest", "after_cursor"])
async def test_a_kill_and_other_cuts_leave_no_rubbish(
    backend: Backend, database: str, cold: ObjectStore, folder: str, name: str
) -> None:
    names = await publish(backend, 100)
    first = process(database, folder, failpoint=f"archive.{name}=kill:2")
    assert await ended(first) == -signal.SIGKILL
    await archive([backend], cold, policy(folder, batch_size=7), 33)
    found = check_archive(cold)
    assert (found.wrong, found.orphans, found.ids) == ([], [], set(names))


# rivals


async def test_a_driver_from_the_past_is_refused(
    backend: Backend, database: str, cold: ObjectStore, folder: str
) -> None:
    names = await publish(backend, 100)
    stale = process(database, folder, failpoint="archive.after_put=stop:4")

    async def stopped() -> bool:
        pid, status = os.waitpid(stale.pid, os.WNOHANG | os.WUNTRACED)  # noqa: ASYNC222
        return bool(pid) and os.WIFSTOPPED(status)

    await until(stopped)
    await archive([backend], cold, policy(folder, batch_size=9), 40)
    while stale.poll() is None:
        stale.send_signal(signal.SIGCONT)
        await asyncio.sleep(0.01)
    assert stale.returncode == 1, "it steps back with an error"
    found = check_archive(cold)
    assert (found.wrong, found.ids) == ([], set(names))
    assert await cursor(backend) == max(identity[1] for identity in found.events)


@pytest.mark.concurrency
async def test_two_archivers_at_once_are_as_good_as_one(
    backend: Backend, database: str, cold: ObjectStore, folder: str
) -> None:
    names = await publish(backend, 200)
    rivals = [process(database, folder, batch_size=size, rows=size) for size in (7, 9, 10)]
    codes = [await ended(each) for each in rivals]
    assert set(codes) <= {0, 1}
    await archive([backend], cold, policy(folder), 25)
    found = check_archive(cold)
    assert (found.wrong, found.ids) == ([], set(names))


async def test_a_manifest_that_is_taken_stops_the_commit(
    backend: Backend, cold: ObjectStore, folder: str
) -> None:
    await publish(backend, 10)
    committer = Committer([backend], cold, policy(folder))
    await committer.attach()
    cursors = await committer.cursors()
    entries = await backend.log.read(CHANNEL, None, 10)

    async def written(size: int, upto: int):  # type: ignore[no-untyped-def]
        pages = backend.log.pages(CHANNEL, None, entries[upto].position, 50)
        batches = [to_batch(SPOT, page) async for page in pages]
        return list(ObjectWriter(cold, size, {}).write(batches))

    late = await written(3, 5)
    await committer.commit(cursors, await written(10, 9))
    with pytest.raises(Superseded, match="steps back"):
        await committer.commit(cursors, late)
    assert await cursor(backend) == entries[9].position


async def test_orphans_stay_until_the_cursor_has_passed_them(
    backend: Backend, cold: ObjectStore, folder: str
) -> None:
    """A rival may still commit what it wrote beyond the cursor: that is not ours to remove."""
    await publish(backend, 30)
    committer = Committer([backend], cold, policy(folder))
    await committer.attach()
    cursors = await committer.cursors()
    entries = await backend.log.read(CHANNEL, None, 30)
    pages = [page async for page in backend.log.pages(CHANNEL, None, entries[-1].position, 50)]
    batches = [to_batch(SPOT, page) for page in pages]
    rival = list(ObjectWriter(cold, 20, {}).write(batches))
    orphans = Orphans(cold, cursors)
    mine = list(ObjectWriter(cold, 10, {}).write([batches[0].slice(0, 25)]))
    removed = orphans.remove(await committer.commit(cursors, mine))
    assert removed == [rival[0].object], "the second one ends beyond the cursor"
    assert check_archive(cold).orphans == [rival[1].object]


# retention


async def test_nothing_is_trimmed_that_is_not_archived(
    backend: Backend, database: str, cold: ObjectStore, folder: str
) -> None:
    """I7: the archiver has stopped halfway, and everything is old enough to go."""
    names = await publish(backend, 100)
    first = process(database, folder, failpoint="archive.after_manifest=kill:1")
    assert await ended(first) == -signal.SIGKILL
    lock = await backend.locks.acquire("gbe:lock:sweeper", "test", timedelta(minutes=1))
    assert lock is not None
    step = await backend.retention.trim(CHANNEL, datetime(2100, 1, 1, tzinfo=UTC), 1000, lock)
    left = {entry.event.id for entry in await backend.log.read(CHANNEL, None, 1000)}
    assert step.removed > 0, "what is archived goes"
    assert step.hold is not None
    assert step.hold.consumer == "archiver"
    assert check_archive(cold).missing(set(names) - left) == set()
    await archive([backend], cold, policy(folder), 25)
    found = check_archive(cold)
    assert (found.wrong, found.orphans, found.ids) == ([], [], set(names))


# lag


async def test_an_archive_that_is_behind_raises_one_alert(
    backend: Backend, database: str, folder: str
) -> None:
    await publish(backend, 60)
    await backend.cursors.attach(CHANNEL, "archiver")
    await backend.cursors.attach(CHANNEL, "somebody-else")
    metrics = ArchiveMetrics()
    watch = LagWatch([replace(policy(folder), lag_events=50)], metrics)
    with Connection([database]) as connection:
        watch.look(connection)
        watch._looked = -LAG_INTERVAL
        watch.look(connection)
    assert metrics.lag[SPOT].events == 60
    [alert] = [
        json.loads(entry.event.data) for entry in await backend.log.read("gbe.events.system.error", None, 9)
    ]
    assert (alert["kind"], alert["consumer"], alert["channel"]) == ("lag", "archiver", CHANNEL)
    assert alert["count"] == 60
