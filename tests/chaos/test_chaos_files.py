"""Our own files on a disk whose power is cut, or which is full: what we called durable is there and whole."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

import holdfast
from holdfast.bus import spool as spool_module
from holdfast.bus.spool import Spool, Spooled
from holdfast.model.errors import NotFound
from holdfast.model.position import format_position
from holdfast.pipeline.arrow import SCHEMA
from holdfast.pipeline.ingest.staging import stage
from holdfast.pipeline.ingest.validation import ValidationRules
from holdfast.pipeline.loader.loader import Loader
from holdfast.pipeline.stores import folder as folder_module
from holdfast.pipeline.stores import open_store
from holdfast.pipeline.wal import Wal, WalBatch, WalSettings, segments
from holdfast.pipeline.wal.batch import batch_of
from holdfast.pipeline.warehouse import Tables, open_warehouse
from holdfast.pipeline.warehouse.delta_files import DeltaFiles
from holdfast_chaos.disk import Disk

pytestmark = pytest.mark.skipif(Disk.missing() is not None, reason=str(Disk.missing()))

NOW = datetime(2026, 3, 1, tzinfo=UTC)


@pytest.fixture
def disk() -> Iterator[Disk]:
    with Disk(32 << 20) as mounted:
        yield mounted


def spooled(number: int, size: int = 100) -> Spooled:
    return Spooled("orders", holdfast.Event(b"x" * size, str(number)), None, 0)


def opened(path: Path) -> Spool:
    spool = Spool(path)
    spool.open()
    return spool


def numbers(spool: Spool) -> list[int]:
    return [int(entry.event.id) for entry in spool.peek(1000)]


def test_what_the_spool_took_survives_a_cut(disk: Disk) -> None:
    path = disk.path / "a" / "spool"
    spool = opened(path)
    for number in range(20):
        spool.append([spooled(number)])
    disk.cut()
    spool.close()
    spool = opened(path)
    assert numbers(spool) == list(range(20))
    spool.advance(12)
    spool.append([spooled(20)])
    spool.set_aside(spooled(99), ValueError("refused"))
    disk.cut()
    spool.close()
    spool = opened(path)
    assert numbers(spool) == list(range(12, 21))
    assert b"refused" in (path / "refused").read_bytes()
    spool.close()


def test_without_our_sync_a_cut_takes_what_the_spool_took(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spool_module, "_SYNCHRONOUS", "OFF")
    spool = opened(disk.path / "spool")
    spool.append([spooled(1)])
    disk.cut()
    spool.close()
    spool = opened(disk.path / "spool")
    assert numbers(spool) == []
    spool.close()


def keep_on(spool: Spool, kept: list[int]) -> None:
    """Append pairs of events, for as long as the spool takes them."""
    for number in range(5, 1000):
        spool.append([spooled(number, 50), spooled(10_000 + number, 5000)])
        kept += [number, 10_000 + number]


def test_a_full_disk_refuses_what_the_spool_cannot_keep_and_only_that(disk: Disk) -> None:
    spool = opened(disk.path / "spool")
    kept = [number for number in range(5) if spool.append([spooled(number)]) is None]
    disk.fill()
    with pytest.raises(holdfast.Unavailable, match="No space left"):
        keep_on(spool, kept)
    assert numbers(spool) == kept, "nothing half-written, and all that was taken"
    disk.free()
    spool.append([spooled(5000)])
    assert numbers(spool) == [*kept, 5000]
    spool.advance(len(kept))
    spool.close()
    spool = opened(disk.path / "spool")
    assert numbers(spool) == [5000]
    spool.close()


def test_a_spool_cannot_be_opened_on_a_full_disk_and_says_so(disk: Disk) -> None:
    disk.fill()
    with pytest.raises(holdfast.Unavailable, match="No space left"):
        opened(disk.path / "spool")


def test_objects_in_a_folder_survive_a_cut(disk: Disk) -> None:
    store = open_store(f"file://{disk.path}/archive")
    store.put("gone/1", b"gone")
    for number in range(5):
        store.put(f"2026/03/01/{number}", b"object %d" % number)
    store.put("lease", b"one")
    store.swap("lease", store.tagged("lease").tag, b"two")
    store.delete("gone/1")
    disk.cut()
    assert [store.get(f"2026/03/01/{number}") for number in range(5)] == [b"object %d" % n for n in range(5)]
    assert store.get("lease") == b"two"
    with pytest.raises(NotFound):
        store.get("gone/1")


def test_without_our_sync_of_folders_a_cut_takes_objects(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder_module, "_sync_folder", lambda folder: None)
    store = open_store(f"file://{disk.path}/archive")
    store.put("object", b"content")
    disk.cut()
    with pytest.raises(NotFound):
        store.get("object")


def test_a_full_disk_leaves_no_half_object_and_no_litter(disk: Disk) -> None:
    store = open_store(f"file://{disk.path}/archive")
    store.put("before", b"before")
    with pytest.raises(holdfast.Unavailable, match="No space left"):
        store.put("large", b"x" * (64 << 20))
    assert store.put("small", b"x" * 1_000_000), "what did not fit takes no room"
    disk.fill()
    with pytest.raises(holdfast.Unavailable, match="No space left"):
        store.put("other", b"x" * 100_000)
    with pytest.raises(holdfast.Unavailable, match="No space left"):
        store.swap("before", store.tagged("before").tag, b"y" * 100_000)
    assert [entry.name for entry in store.list()] == ["before", "small"]
    assert store.get("before") == b"before"
    disk.free()
    assert store.put("other", b"other")


def rows(*names: str) -> pa.RecordBatch:
    """Rows as the source gives them."""
    fixed = {
        "channel": "orders",
        "source": "default",
        "type": "event",
        "time": NOW,
        "headers": [],
        "data": b"{}",
    }
    found = [
        fixed | {"position": format_position(1, number), "id": name, "partition": 0}
        for number, name in enumerate(names, 1)
    ]
    return pa.RecordBatch.from_pylist(found, SCHEMA)


def commit(wal: Wal, *names: str) -> WalBatch:
    [part] = stage(wal.store, [rows(*names)], ValidationRules(), {}, NOW)
    return wal.commit(batch_of([part], NOW))


def wal_on(disk: Disk) -> Wal:
    path = str(disk.path / "wal")
    return Wal(open_store(path), WalSettings(path=path), lambda: NOW)


def test_a_committed_batch_of_the_wal_survives_a_cut(disk: Disk) -> None:
    batch = commit(wal_on(disk), "a", "b")
    disk.cut()
    [found] = wal_on(disk).pending()
    assert found == batch
    assert segments.read_all(wal_on(disk).store, found.segments)["id"].to_pylist() == ["a", "b"]


def test_a_batch_that_a_full_disk_refused_is_not_there_and_can_be_committed_later(disk: Disk) -> None:
    wal = wal_on(disk)
    disk.fill()
    with pytest.raises(holdfast.Unavailable, match="No space left"):
        commit(wal, "a", "b")
    assert wal.pending() == []
    disk.free()
    assert wal_on(disk).pending() == []
    batch = commit(wal, "a", "b")
    assert wal.pending() == [batch]


def load(disk: Disk, kind: str) -> None:
    """Two events through the WAL into a warehouse, confirmed, and then the power fails."""
    wal = wal_on(disk)
    batch = commit(wal, "a", "b")
    warehouse = open_warehouse(f"{kind}://{disk.path}/warehouse", Tables())
    Loader(wal, warehouse, holder="tester", chance=lambda: 0.5).run_once()
    assert list(wal.records.names("confirmed")) == [batch.name]
    disk.cut()
    warehouse.close()


def in_warehouse(disk: Disk, kind: str) -> list[str]:
    """The ids in the warehouse's own files."""
    path = f"{disk.path}/warehouse"
    if kind == "delta":
        return sorted(DeltaTable(f"{path}/events").to_pyarrow_table()["id"].to_pylist())
    with duckdb.connect(path, read_only=True) as connection:
        return [name for (name,) in connection.execute("SELECT id FROM events ORDER BY id").fetchall()]


@pytest.mark.parametrize("kind", ["duckdb", "delta"])
def test_what_the_wal_calls_confirmed_is_in_the_warehouse_after_a_cut(disk: Disk, kind: str) -> None:
    load(disk, kind)
    assert len(list(wal_on(disk).records.names("confirmed"))) == 1
    assert in_warehouse(disk, kind) == ["a", "b"]


def test_without_our_sync_of_its_files_a_cut_takes_a_delta_warehouse(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DeltaFiles, "sync_commits", lambda *_: None)
    load(disk, "delta")
    with pytest.raises(DeltaError):
        in_warehouse(disk, "delta")
