"""One contract over all object stores: a folder, a real S3, a PostgreSQL table."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import psycopg
import pytest

from holdfast.embedded import S3
from holdfast.model.errors import InvalidInput, InvalidName, NotFound, ObjectConflict, Unavailable
from holdfast.pipeline.stores import Entry, ObjectStore, open_store, probe
from holdfast.pipeline.stores import s3 as s3_module
from holdfast.pipeline.stores.folder import FolderStore
from holdfast_chaos.archive_store import FaultyS3, RequestFault, faulty_s3

KINDS = ("folder", "s3", "table")


@pytest.fixture(params=KINDS)
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], ObjectStore]:
    """Opens the same store again at each call."""
    if request.param == "folder":
        url = f"file://{tmp_path}/archive"
    elif request.param == "s3":
        request.getfixturevalue("aws")
        url = f"s3://bucket/{tmp_path.name}"
    else:
        url = request.getfixturevalue("blank") + "?table=cold"
    return lambda: open_store(url)


@pytest.fixture
def store(make: Callable[[], ObjectStore]) -> ObjectStore:
    return make()


def test_what_was_put_is_there(store: ObjectStore, make: Callable[[], ObjectStore]) -> None:
    assert store.put("a/b.bin", b"\x00content")
    again = make()
    assert again.get("a/b.bin") == b"\x00content"
    assert again.size("a/b.bin") == 8
    assert again.size("a/c.bin") is None
    with pytest.raises(NotFound, match=r"a/c\.bin"):
        again.get("a/c.bin")


def test_what_is_not_there_is_empty(store: ObjectStore) -> None:
    assert list(store.list()) == []
    assert store.size("a/b") is None
    assert not store.swap("a/b", "tag", b"x")
    store.delete("a/b")
    with pytest.raises(NotFound, match="a/b"):
        store.tagged("a/b")


def test_a_repeat_is_success_and_other_bytes_are_a_conflict(store: ObjectStore) -> None:
    assert store.put("a/b.bin", b"one")
    assert not store.put("a/b.bin", b"one")
    with pytest.raises(ObjectConflict, match=r"a/b\.bin"):
        store.put("a/b.bin", b"two")
    assert store.get("a/b.bin") == b"one"


def test_of_many_writers_one_wins(store: ObjectStore) -> None:
    start = threading.Barrier(8)

    def write(number: int) -> bool:
        start.wait()
        try:
            return store.put("race", b"%d" % number)
        except ObjectConflict:
            return False

    with ThreadPoolExecutor(8) as pool:
        won = list(pool.map(write, range(8)))
    assert won.count(True) == 1
    assert store.get("race") == b"%d" % won.index(True)


def test_a_swap_goes_by_the_tag(store: ObjectStore) -> None:
    store.put("lease", b"one")
    tag = store.tagged("lease").tag
    assert store.swap("lease", tag, b"two")
    assert not store.swap("lease", tag, b"three")
    assert store.swap("lease", tag, b"two"), "its own repeat is no failure"
    assert store.get("lease") == b"two"
    assert not store.swap("nothing", tag, b"x")


def test_of_many_swaps_one_wins(store: ObjectStore) -> None:
    store.put("lease", b"free")
    tag = store.tagged("lease").tag
    start = threading.Barrier(8)

    def swap(number: int) -> bool:
        start.wait()
        return store.swap("lease", tag, b"holder %d" % number)

    with ThreadPoolExecutor(8) as pool:
        won = list(pool.map(swap, range(8)))
    assert won.count(True) == 1
    assert store.get("lease") == b"holder %d" % won.index(True)


def test_listing_goes_by_whole_parts_and_in_order(store: ObjectStore) -> None:
    for name in ("b/2", "b/1", "b/c/3", "bb/4", "a"):
        store.put(name, name.encode())
    assert list(store.list("b")) == [Entry("b/1", 3), Entry("b/2", 3), Entry("b/c/3", 5)]
    assert list(store.list("b/")) == list(store.list("b"))
    assert [entry.name for entry in store.list()] == ["a", "b/1", "b/2", "b/c/3", "bb/4"]
    assert list(store.list("nothing")) == []


def test_what_was_deleted_is_gone(store: ObjectStore) -> None:
    store.put("a/b", b"one")
    store.delete("a/b")
    store.delete("a/b")
    assert store.size("a/b") is None
    assert store.put("a/b", b"two")


@pytest.mark.parametrize(
    "name", ["", "/a", "a/", "a//b", "../a", "a/../b", ".drafts/x", "a\0b", "a/" + "x" * 241]
)
def test_names_that_could_escape_are_refused(store: ObjectStore, name: str) -> None:
    with pytest.raises(InvalidName, match="is not usable"):
        store.put(name, b"")


def test_the_probe_finds_both_conditions(store: ObjectStore) -> None:
    assert [finding.level for finding in probe(store)] == ["ok", "ok"]
    assert list(store.list()) == [], "the probe leaves nothing"


class Careless:
    """A clone of S3 that takes conditions and ignores them."""

    def __init__(self, store: ObjectStore) -> None:
        self._store, self.url = store, store.url

    def put(self, name: str, data: bytes) -> bool:
        self._store.delete(name)
        return self._store.put(name, data)

    def swap(self, name: str, _: str, data: bytes) -> bool:
        return self.put(name, data)

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)


def test_the_probe_warns_of_a_store_that_ignores_conditions(tmp_path: Path) -> None:
    careless: object = Careless(FolderStore(tmp_path))
    findings = probe(careless)  # type: ignore[arg-type]
    assert [finding.level for finding in findings] == ["warning", "warning"]
    assert "If-None-Match" in findings[0].message
    assert "If-Match" in findings[1].message


# folder

KILLED = """
import os, signal, sys
from pathlib import Path
from holdfast.pipeline.stores.folder import FolderStore
os.link = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
FolderStore(Path(sys.argv[1])).put("a/b", b"x" * 1000)
"""


def test_a_killed_writer_leaves_no_half_object(tmp_path: Path) -> None:
    assert subprocess.run([sys.executable, "-c", KILLED, tmp_path]).returncode < 0
    store = FolderStore(tmp_path)
    assert list(store.list()) == []
    [draft] = (tmp_path / ".drafts").iterdir()
    os.utime(draft, (0, 0))
    assert FolderStore(tmp_path).put("a/b", b"whole")
    assert not draft.exists(), "a draft of long ago is removed"


@pytest.mark.parametrize("mode", [0o700, 0o750, 0o2775])
def test_what_is_put_into_a_folder_gets_its_permissions(tmp_path: Path, mode: int) -> None:
    """Whoever shall read an archive opens its folder; nobody else reads it, whatever the umask."""
    folder = tmp_path / "archive"
    folder.mkdir()
    folder.chmod(mode)
    for umask in (0o077, 0o000):
        before = os.umask(umask)
        try:
            name = f"{umask}/2026/one.jsonl.gz"
            store = FolderStore(folder)
            store.put(name, b"one")
            assert store.swap(name, store.tagged(name).tag, b"two")
        finally:
            os.umask(before)
        modes = [(folder / each).stat().st_mode & 0o7777 for each in (name, f"{umask}/2026", f"{umask}")]
        assert modes == [mode & 0o666, mode, mode]


def test_to_look_at_a_folder_does_not_make_it(tmp_path: Path) -> None:
    store = FolderStore(tmp_path / "cold")
    assert list(store.list("archive")) == []
    assert store.size("a/b") is None
    assert not store.swap("a/b", "tag", b"x")
    store.delete("a/b")
    assert not (tmp_path / "cold").exists()


def test_what_cannot_be_listed_is_not_empty(tmp_path: Path) -> None:
    (tmp_path / "cold").write_text("a file where a folder must be")
    with pytest.raises(Unavailable, match="Not a directory"):
        list(FolderStore(tmp_path / "cold").list())


def test_a_full_or_closed_disk_is_unavailable(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("a file where a folder must be")
    with pytest.raises(Unavailable, match="nothing was changed"):
        FolderStore(tmp_path).put("a/b", b"x")


# S3


def test_a_server_that_comes_back_gets_the_object(s3: S3, aws: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s3_module, "_RETRIES", 1000)  # a server takes as long as it takes to start
    store = open_store("s3://bucket/outage")
    store.put("before", b"x")
    with monkeypatch.context() as patch, ThreadPoolExecutor(1) as pool:
        s3.kill()
        try:
            patch.setattr(s3_module, "_RETRIES", 0)
            with pytest.raises(Unavailable, match="did not answer"):
                open_store("s3://bucket/outage").put("during", b"x")
            pending = pool.submit(store.put, "during", b"x")
        finally:
            s3.start()
        assert pending.result()
    assert store.get("before") == b"x"


def test_wrong_credentials_are_said_to_be_wrong(aws: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    with pytest.raises(InvalidInput, match="AWS_SECRET_ACCESS_KEY"):
        open_store("s3://bucket/refused").put("a", b"x")


def test_a_large_object_goes_up_in_one_conditional_request(aws: None) -> None:
    store, data = open_store("s3://bucket/large"), os.urandom(12 << 20)
    assert store.put("big", data)
    assert not store.put("big", data)
    assert store.get("big") == data
    with pytest.raises(ObjectConflict):
        store.put("big", data[:-1])


@pytest.fixture
def way(s3: S3, aws: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyS3]:
    with faulty_s3(s3.port) as opened:
        monkeypatch.setenv("AWS_ENDPOINT_URL", opened.endpoint)
        yield opened


@pytest.mark.parametrize(
    ("faults", "written"),
    [
        (["503", "500"], True),
        (["lost"], False),  # the 412 of the retry is about our own object
        (["503", "lost"], False),
        (["409"], True),  # two puts met, and neither came through
    ],
)
def test_a_put_survives_what_servers_and_networks_do(
    way: FaultyS3, tmp_path: Path, faults: list[RequestFault], written: bool
) -> None:
    store = open_store(f"s3://bucket/{tmp_path.name}")
    way.script.extend(faults)
    assert store.put("a", b"content") == written
    assert way.seen[: len(faults)] == [f"PUT {fault}" for fault in faults]
    assert store.get("a") == b"content"


@pytest.mark.parametrize("error", [BrokenPipeError(), ConnectionResetError(), ValueError("a defect")])
def test_the_proxy_tells_of_its_own_errors_only(error: Exception, capsys: pytest.CaptureFixture[str]) -> None:
    """A client that was killed is what a run is made of."""
    with FaultyS3(1) as proxy:
        try:
            raise error
        except Exception:
            proxy.handle_error(None, ("127.0.0.1", 1))
    assert ("a defect" in capsys.readouterr().err) is isinstance(error, ValueError)


def test_a_swap_whose_answer_was_lost_is_still_ours(way: FaultyS3, tmp_path: Path) -> None:
    store = open_store(f"s3://bucket/{tmp_path.name}")
    store.put("a", b"one")
    tag = store.tagged("a").tag
    way.script.append("lost")
    assert store.swap("a", tag, b"two")
    assert store.get("a") == b"two"


def test_a_put_that_timed_out_after_it_was_applied_is_unknown_and_safe_to_repeat(
    way: FaultyS3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3_module, "_REQUEST", timedelta(milliseconds=500))
    store = open_store(f"s3://bucket/{tmp_path.name}")
    way.script.append("late")
    with pytest.raises(Unavailable, match="did not answer"):
        store.put("a", b"content")
    assert not store.put("a", b"content"), "the 412 is about our own object"
    assert store.get("a") == b"content"


def test_an_answer_that_was_cut_is_never_taken_for_whole(way: FaultyS3, tmp_path: Path) -> None:
    store = open_store(f"s3://bucket/{tmp_path.name}")
    data = os.urandom(100_000)
    store.put("a", data)
    way.script.append("cut")
    try:
        assert store.get("a") == data
    except Unavailable:
        assert store.get("a") == data


# a table


def test_lines_become_rows(blank: str) -> None:
    lines = [
        {"message_id": f"m-{n}", "timestamp": "2026-02-14T23:59:00Z", "channel": "c", "position": f"000{n}"}
        | {
            "source": "s",
            "type": "t",
            "key": None,
            "headers": {},
            "data": {"n": n, "text": "\0" if n == 1 else ""},
        }
        for n in range(3)
    ]
    data = gzip.compress(b"".join(json.dumps(line).encode() + b"\n" for line in lines))
    store = open_store(blank + "?table=cold")
    assert store.put("archive/x/1.jsonl.gz", data)
    assert not store.put("archive/x/1.jsonl.gz", data)
    with psycopg.connect(blank) as connection:
        query = "SELECT object, line, message_id, document->'data'->>'n' FROM cold ORDER BY line"
        rows = connection.execute(query).fetchall()
    unfit = "jsonb cannot hold a NUL; the object can"
    assert [row[:3] for row in rows] == [("archive/x/1.jsonl.gz", n + 1, f"m-{n}") for n in range(3)]
    assert [row[3] for row in rows] == ["0", None, "2"], unfit
    assert store.get("archive/x/1.jsonl.gz") == data
    store.delete("archive/x/1.jsonl.gz")
    with psycopg.connect(blank) as connection:
        assert connection.execute("SELECT count(*) FROM cold").fetchone() == (0,)


def test_to_look_at_a_table_does_not_make_it(blank: str) -> None:
    store = open_store(f"{blank}?table=cold")
    assert list(store.list()) == []
    with psycopg.connect(blank) as connection:
        row = connection.execute("SELECT to_regclass('cold_objects')").fetchone()
    assert row == (None,)


def test_an_object_that_is_no_lines_leaves_nothing(blank: str) -> None:
    store = open_store(blank)
    with pytest.raises(Exception, match="gzip"):
        store.put("archive/x/1.jsonl.gz", b"not gzip")
    assert store.size("archive/x/1.jsonl.gz") is None


# addresses


@pytest.mark.parametrize("url", ["ftp://host/x", "s3://", "file://elsewhere/x", "gs://bucket"])
def test_an_address_of_no_kind_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(InvalidInput, match="no object store"):
        open_store(url)


def test_an_address_shows_no_password(blank: str) -> None:
    assert ":" not in open_store(blank).url.removeprefix("postgresql://")
