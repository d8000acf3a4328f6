"""The index of a Delta table: it names every file that has a hash, whatever was merged, lost or damaged."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from holdfast import failpoints
from holdfast.failpoints import FailpointError
from holdfast.pipeline.stores import ObjectStore
from holdfast.pipeline.stores.folder import FolderStore
from holdfast.pipeline.warehouse import delta_index
from holdfast.pipeline.warehouse.delta_index import Hashes, HashIndex

CHANCE = np.random.default_rng(11)


class Counting(FolderStore):
    """A folder that counts the bytes that are read of it."""

    read = 0

    def get(self, name: str) -> bytes:
        data = super().get(name)
        self.read += len(data)
        return data

    def parts(self, name: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        found = super().parts(name, ranges)
        self.read += sum(map(len, found))
        return found


@pytest.fixture
def store(tmp_path: Path) -> Counting:
    return Counting(tmp_path)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks and pieces so small that some hundred hashes make three levels."""
    for name, value in (("BLOCK", 4), ("PIECE", 32), ("FAN", 3)):
        monkeypatch.setattr(delta_index, name, value)


def drawn(count: int) -> Hashes:
    return CHANCE.integers(-(2**63), 2**63 - 1, count, np.int64)


def filled(store: ObjectStore, files: int, rows: int) -> tuple[HashIndex, dict[str, Hashes]]:
    index, held = HashIndex(store, "events"), dict[str, Hashes]()
    for number in range(files):
        held[f"f{number}"] = drawn(rows)
        assert index.add({f"f{number}": held[f"f{number}"]}, held)
        while index.merge():
            pass
    return index, held


@pytest.mark.usefixtures("small")
def test_every_file_that_has_a_hash_is_found(store: Counting) -> None:
    index, held = filled(store, 25, 23)
    held["both"] = np.concatenate([held["f3"][:2], held["f17"][5:6], drawn(3)])
    index.add({"both": held["both"]}, held)
    assert len(index.state().levels) > 2, "or nothing was merged twice"
    for level in index.state().levels[1:]:
        assert all(one.high <= two.low for one, two in pairwise(level))
    for hashes in held.values():
        for wanted in (hashes[:1], hashes[2:3], hashes[-1:]):
            files = {name for name in held if wanted[0] in held[name]}
            assert index.find(wanted, held) == (files, set())
    assert index.find(drawn(50), held) == (set(), set())


@pytest.mark.usefixtures("small")
def test_the_same_hash_many_times_over_is_found_in_all_of_its_files(store: Counting) -> None:
    """It fills blocks, and begins in the middle of one."""
    index, same = HashIndex(store, "events"), np.array([7], np.int64)
    files = {f"f{number}": np.array([number, 7, 100 + number], np.int64) for number in range(20)}
    index.add(files, files)
    assert index.find(same, files) == (set(files), set())


@pytest.mark.usefixtures("small")
def test_a_file_that_is_gone_is_not_named_and_one_that_is_new_has_to_be_looked_at(store: Counting) -> None:
    index, held = filled(store, 12, 9)
    live = {"f1", "f2", "rewritten"}
    assert index.find(np.concatenate(list(held.values())), live) == ({"f1", "f2"}, {"rewritten"})
    index.add({"rewritten": held["f5"]}, live)
    while index.merge():
        pass
    assert set(index.state().numbers) == live
    assert index.find(held["f5"], live) == ({"rewritten"}, set())


@pytest.mark.parametrize("harm", ["flipped", "torn", "missing", "state"])
def test_a_damaged_index_is_dropped_and_everything_is_looked_at(
    store: Counting, tmp_path: Path, harm: str
) -> None:
    index, held = filled(store, 2, 700)
    name = next(index.state().pieces).object
    file = tmp_path / (name if harm != "state" else "_holdfast/index/events/state.json")
    data = file.read_bytes()
    match harm:
        case "flipped":
            file.write_bytes(data[:100] + bytes([data[100] ^ 1]) + data[101:])
        case "torn" | "state":
            file.write_bytes(data[: len(data) // 2])
        case "missing":
            file.unlink()
    fresh = HashIndex(store, "events")
    assert fresh.find(np.concatenate(list(held.values())), held) == (set(), set(held))
    assert fresh.add(held, held)
    assert fresh.find(held["f1"], held) == ({"f1"}, set())


@pytest.mark.usefixtures("small")
def test_a_merge_that_was_cut_off_changes_nothing_and_its_pieces_go(store: Counting) -> None:
    index, held = HashIndex(store, "events"), dict[str, Hashes]()
    for number in range(4):
        held[f"f{number}"] = drawn(40)
        index.add({f"f{number}": held[f"f{number}"]}, held)
    before = index.state()
    with failpoints.active("compact.before_index", "raise"), pytest.raises(FailpointError):
        index.merge()
    assert index.state() == before
    assert index.find(held["f2"], held) == ({"f2"}, set())
    now = datetime.now(UTC)
    assert index.clean(now) == 0, "it may be at work"
    assert index.clean(now + timedelta(days=2)) > 0
    assert index.merge()
    assert index.find(held["f2"], held) == ({"f2"}, set())


@pytest.mark.usefixtures("small")
def test_of_two_that_change_it_one_comes_through(store: Counting) -> None:
    index, held = filled(store, 3, 5)
    other = HashIndex(store, "events")
    extra = {**held, "x": drawn(5), "y": drawn(5)}
    with failpoints.active("compact.before_index", lambda: other.add({"x": extra["x"]}, extra)):
        index.add({"y": extra["y"]}, extra)
        index.merge()
    assert set(index.state().numbers) == set(extra)
    for name, hashes in extra.items():
        assert index.find(hashes, extra) == ({name}, set())


def test_a_look_up_reads_no_more_of_a_large_table_than_of_a_small_one(store: Counting) -> None:
    """A block for each hash and level. Ten times the rows are a level more at most."""
    read = []
    for rows in (100_000, 1_000_000):
        index, held = HashIndex(store, f"t{rows}"), {"f": drawn(rows)}
        index.add(held, held)
        while index.merge():
            pass
        index.find(drawn(20), held)  # the first hashes of blocks are read once
        store.read = 0
        index.find(drawn(20), held)
        read.append(store.read)
    assert read[1] < 2.5 * read[0]
    assert read[1] < 0.03 * 8 * 1_000_000
