"""The disk: what a power cut takes and leaves, on the disk itself, of real servers, and of our own files."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis

import holdfast
from holdfast.contracts import Backend
from holdfast.embedded import Nats, Postgres, Redis
from holdfast.model.policy import Policy
from holdfast.wiring import backend as connect_backend
from holdfast_chaos.disk import Disk
from kit import CHANNEL, publish, read_all, until

pytestmark = pytest.mark.skipif(Disk.missing() is not None, reason=str(Disk.missing()))

HOLDER = """
import sys, time
from holdfast_chaos.disk import Disk
with Disk(8 << 20) as disk:
    print(disk.path, flush=True)
    time.sleep(60)
"""


@pytest.fixture
def disk() -> Iterator[Disk]:
    with Disk() as mounted:
        yield mounted


def write(path: Path, text: str = "content") -> None:
    """A file that is synced itself; its name is not."""
    with path.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


def test_a_cut_takes_what_was_not_synced_and_leaves_the_rest(disk: Disk) -> None:
    write(disk.path / "kept")
    sync(disk.path)
    write(disk.path / "renamed")
    (disk.path / "renamed").rename(disk.path / "renamed too late")
    (disk.path / "linked too late").hardlink_to(disk.path / "kept")
    (disk.path / "written").write_text("content")
    disk.cut()
    left = {path.name: path.read_text() for path in disk.path.iterdir() if path.is_file()}
    assert left == {"kept": "content", "renamed": "content"}


def test_a_synced_name_survives_and_so_does_what_was_there_before_an_earlier_cut(disk: Disk) -> None:
    write(disk.path / "first")
    disk.cut()
    write(disk.path / "draft")
    (disk.path / "draft").rename(disk.path / "second")
    sync(disk.path)
    disk.cut()
    assert sorted(path.name for path in disk.path.iterdir() if path.is_file()) == ["first", "second"]


def test_a_file_that_is_open_during_a_cut_is_dead_and_keeps_nobody_from_going_on(disk: Disk) -> None:
    with (disk.path / "open").open("wb", buffering=0) as file:
        disk.cut()
        with pytest.raises(OSError, match="Input/output error"):
            file.write(b"too late")
        (disk.path / "other").write_text("content")
    assert not (disk.path / "open").exists()


def test_a_full_disk_refuses_writes_until_there_is_room(disk: Disk) -> None:
    disk.fill()
    with pytest.raises(OSError) as raised:
        write(disk.path / "file", "x" * 10_000)
    assert raised.value.errno == errno.ENOSPC
    disk.free()
    write(disk.path / "file", "x" * 100_000_000)


def test_a_killed_process_leaves_no_disk_behind() -> None:
    process = subprocess.Popen([sys.executable, "-c", HOLDER], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    path = Path(process.stdout.readline().strip())
    assert path.is_mount()
    process.send_signal(signal.SIGKILL)
    process.communicate()
    deadline = time.monotonic() + 10
    while path.parent.exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)


Kind = Postgres | Redis | Nats


def durable(kind: str, folder: Path) -> Kind:
    match kind:
        case "postgres":
            return Postgres(folder)
        case "redis":
            return Redis(folder)
    return Nats(folder)


def careless(kind: str, folder: Path) -> Kind:
    """As a server is that somebody wants to be fast."""
    match kind:
        case "postgres":
            return Postgres(folder, {"synchronous_commit": "off", "wal_writer_delay": "10s"})
        case "redis":
            return Redis(folder, appendfsync="everysec")
    return Nats(folder, sync_interval="2m")


def test_a_private_server_has_the_same_address_and_password_after_a_cut(disk: Disk) -> None:
    with Redis(disk.path / "server") as server:
        url = server.url
        server.kill()
        disk.cut()
    with Redis(disk.path / "server") as again:
        assert again.url == url


async def publish_and_cut(
    server: Kind, disk: Disk, *names: str, first: Callable[[], None] = lambda: None
) -> list[str]:
    """The ids that are in the log after all of them were acknowledged and the power was cut at once."""
    store = connect_backend(server.url)
    await store.open()
    first()
    for name in names:
        await publish(store, name)
    server.kill()
    await store.close()
    disk.cut()
    server.start()
    again = connect_backend(server.url)
    await again.open()
    found = [entry.event.id for entry in await read_all(again)]
    await again.close()
    return found


@pytest.mark.parametrize("kind", ["postgres", "redis", "nats"])
async def test_a_cut_takes_what_a_server_acknowledged_only_from_a_careless_one(disk: Disk, kind: str) -> None:
    names = [f"event-{number}" for number in range(20)]
    with durable(kind, disk.path / "server") as server:
        assert await publish_and_cut(server, disk, *names) == names
    with careless(kind, disk.path / "server") as server:
        for turn in range(10):

            def first() -> None:
                if kind == "redis":
                    wait_for_sync(server.url)

            found = await publish_and_cut(server, disk, f"careless-{turn}", first=first)
            if f"careless-{turn}" not in found:
                break
        else:
            pytest.fail("nothing was lost: the cut is no cut")
    assert found[: len(names)] == names


def wait_for_sync(url: str) -> None:
    """Wait until Redis has synced in this second: it does not sync again before the next one.

    On a busy machine the next one may come before the cut, so the test may have to try again.
    """
    with redis.Redis.from_url(url) as client:
        time.sleep(1 - time.time() % 1)
        client.set("anything", "at all")
        while client.info("persistence")["aof_pending_bio_fsync"]:
            time.sleep(0.001)


async def publish_on(store: Backend, acked: list[str]) -> None:
    """Publish what cannot be compressed, for as long as the store takes it."""
    for number in range(2_000):
        await store.log.publish(CHANNEL, [holdfast.Event(os.urandom(20_000), f"event-{number}")])
        acked.append(f"event-{number}")


@pytest.mark.parametrize("kind", ["postgres", "redis", pytest.param("nats", marks=pytest.mark.slow)])
async def test_a_full_disk_under_a_server_is_a_transient_error_and_takes_nothing_back(
    disk: Disk, kind: str
) -> None:
    with durable(kind, disk.path / "server") as server:
        store = connect_backend(server.url)
        await store.open()
        await publish(store, "before")
        acked = ["before"]
        disk.fill()
        with pytest.raises(holdfast.Transient):
            await publish_on(store, acked)
        disk.free()
        server.kill()  # Redis and PostgreSQL may have given up by themselves, NATS takes no more writes
        server.start()

        async def published() -> bool:
            try:
                await publish(store, "after")
            except holdfast.Unavailable:
                return False
            return True

        await until(published)
        logged = [entry.event.id for entry in await read_all(store)]
        assert logged in ([*acked, "after"], [*acked, f"event-{len(acked) - 1}", "after"])
        await store.close()


async def test_a_full_disk_under_nats_is_a_transient_error_of_a_purge_too(disk: Disk) -> None:
    with durable("nats", disk.path / "server") as server:
        store = connect_backend(server.url)
        await store.open()
        await store.channels.subscribe(CHANNEL, "billing", Policy())
        # With a priority each has a record of its own to remove.
        events = [holdfast.Event(b"1", f"event-{number}") for number in range(50)]
        await store.log.publish(CHANNEL, events, priority=1)
        await store.leases.claim(CHANNEL, "billing", 50, "worker")
        assert not (await store.channels.remove_consumer(CHANNEL, "billing", 10)).done
        disk.fill()

        async def removed() -> bool:
            return (await store.channels.remove_consumer(CHANNEL, "billing", 10)).done

        with pytest.raises(holdfast.Transient):
            await until(removed)  # it ends at the latest when the blocks that the server has are full
        await store.close()
