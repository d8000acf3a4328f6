"""The archive: manifests, objects and their lines are what was written, or damaged; bombs end at a limit."""

from __future__ import annotations

import gzip
import hashlib
import time
import zlib
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import orjson
import pytest
from hostile import BITS, BYTES, JSON, REFUSED, attempt, flipped, fuzzed
from hypothesis import example, given
from hypothesis import strategies as st

from holdfast.model.errors import Damaged, ObjectConflict
from holdfast.model.log import Page
from holdfast.model.position import format_position
from holdfast.pipeline.archive.lines import decode_lines, encode_lines, exact_data
from holdfast.pipeline.archive.manifests import Manifest, decode_manifest, read_catalog
from holdfast.pipeline.archive.objects import Written, decompressed, text_of
from holdfast.pipeline.archive.verify import check
from holdfast.pipeline.archive.writer import ObjectWriter
from holdfast.pipeline.arrow import to_batch
from holdfast.pipeline.compact import Piece, compact_piece
from holdfast.pipeline.offsets import ChannelPartition
from holdfast.pipeline.stores.folder import FolderStore

SPOT = ChannelPartition(0, "orders")
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
TEXT = st.text(st.characters(codec="utf-8"), max_size=20)
EVENTS = st.tuples(
    TEXT,
    TEXT,
    st.none() | TEXT,
    st.datetimes(timezones=st.just(UTC)),
    st.dictionaries(TEXT, TEXT, max_size=3),
    st.one_of(
        BYTES,
        JSON.map(lambda value: orjson.dumps(value, default=str) if _dumps(value) else b"?"),
        st.sampled_from(
            [b'{"a":\r1}', b"[\n1\r\n]", b'},"data":', b'{"headers":{},"data":1}', b"1.0e5", b"-0.0", b" 1 "]
        ),
        st.integers(1_000, 1_030).map(lambda depth: b"[" * depth + b"]" * depth),
        st.integers(1_000, 1_030).map(lambda depth: b'{"a":' * depth + b"1" + b"}" * depth),
    ),
)


def _dumps(value: Any) -> bool:
    try:
        orjson.dumps(value)
    except TypeError:
        return False
    return True


def position(number: int) -> str:
    return format_position(1, 0, number)


def batch_of(events: list[Any]) -> Any:
    ids, sources, keys, times, headers, data = (list(column) for column in zip(*events, strict=True))
    micros = [(each - EPOCH) // timedelta(microseconds=1) for each in times]
    places = [position(number) for number in range(len(events))]
    return to_batch(SPOT, Page(places, ids, sources, ["event"] * len(ids), keys, micros, headers, data))


@fuzzed(2)
@given(st.lists(EVENTS, min_size=1, max_size=4))
@example([("a", "s", None, EPOCH, {}, b"[" * 1024 + b"]" * 1024)])
@example([("a", "s", None, EPOCH, {}, b'[\n"},\\"data\\":"]')])
def test_every_event_comes_back_from_its_line(events: list[Any]) -> None:
    text = b"".join(encode_lines(batch_of(events)).to_pylist())
    assert text.count(b"\n") == len(events)
    for row, event in zip(decode_lines("o", 0, text).to_pylist(), events, strict=True):
        name, source, key, moment, headers, data = event
        assert (row["message_id"], row["source"], row["key"], row["timestamp"]) == (name, source, key, moment)
        assert dict(row["headers"]) == headers
        assert exact_data(row["data"], row["data_base64"]) == data


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> FolderStore:
    return FolderStore(tmp_path_factory.mktemp("archive"))


@pytest.fixture(scope="module")
def written(store: FolderStore) -> Written:
    """An object of a few events."""
    events = [(f"e-{number}", "s", None, EPOCH, {"h": "x"}, b'{"n":%d}' % number) for number in range(20)]
    [found] = ObjectWriter(store, 100, {}).write([batch_of(events)])
    return found


def test_an_object_is_read_back(store: FolderStore, written: Written) -> None:
    assert text_of(store, written).count(b"\n") == 20
    assert check(store, written) is None


@fuzzed()
@given(BITS, st.integers(0, 10_000), BYTES)
def test_a_changed_object_is_damaged_for_whoever_reads_it(
    store: FolderStore, written: Written, bit: int, size: int, junk: bytes
) -> None:
    data = store.get(written.object)
    for changed in (flipped(data, bit), data[: size % len(data)], data + (junk or b"\0"), data + data):
        name = f"changed/{hashlib.sha256(changed).hexdigest()}"
        store.put(name, changed)
        other = written._replace(object=name)
        with pytest.raises(Damaged, match=name):
            text_of(store, other)
        with pytest.raises(Damaged):
            compact_piece(store, Piece(f"compact/{bit}", (other,)))
        problem = check(store, other)
        assert problem is not None
        assert problem.kind == "damaged"
        store.delete(name)


@fuzzed()
@given(BITS, BYTES)
def test_an_object_whose_checksum_was_made_to_fit_is_read_or_damaged(
    store: FolderStore, written: Written, bit: int, junk: bytes
) -> None:
    for changed in (flipped(store.get(written.object), bit), gzip.compress(junk), junk):
        name = f"fit/{hashlib.sha256(changed).hexdigest()}"
        store.put(name, changed)
        other = written._replace(object=name, bytes=len(changed), sha256=hashlib.sha256(changed).hexdigest())
        attempt(text_of, store, other)
        problem = check(store, other)
        assert problem is None or problem.kind == "damaged"
        if changed == junk or junk == gzip.decompress(store.get(written.object)):
            continue
        store.delete(name)


def test_a_missing_object_is_named(store: FolderStore, written: Written) -> None:
    with pytest.raises(Damaged, match="gone/x is missing"):
        text_of(store, written._replace(object="gone/x"))


def test_a_bomb_ends_at_its_limit() -> None:
    packer = zlib.compressobj(1, wbits=31)
    bomb = b"".join(packer.compress(b"\0" * (1 << 20)) for _ in range(32)) + packer.flush()
    assert len(bomb) < 1 << 20
    began = time.process_time()
    with pytest.raises(Damaged, match="more than 1000000 bytes"):
        decompressed("bomb", bomb, 1_000_000)
    assert time.process_time() - began < 1
    assert len(decompressed("whole", bomb)) == 32 << 20


@fuzzed()
@given(BYTES, st.integers(0, 300))
def test_gzip_is_whole_or_damaged(data: bytes, size: int) -> None:
    assert attempt(decompressed, "x", data) is REFUSED or gzip.decompress(data) == decompressed("x", data)
    packed = gzip.compress(data)
    assert decompressed("x", packed) == data
    assert attempt(decompressed, "x", packed[: size % len(packed)]) is REFUSED
    assert attempt(decompressed, "x", packed + b"\0") is REFUSED


def test_an_object_of_others_under_our_name_is_a_conflict(store: FolderStore, tmp_path: Path) -> None:
    events = [("e", "s", None, EPOCH, {}, b"1")]
    empty = FolderStore(tmp_path / "a")
    [ours] = ObjectWriter(empty, 100, {}).write([batch_of(events)])
    for number, data in enumerate(
        (b"", b"junk", gzip.compress(b"x"), gzip.compress(b"\0" * (64 << 20)), b"\x1f\x8b")
    ):
        other = FolderStore(tmp_path / f"b{number}")
        other.put(ours.object, data)
        with pytest.raises(ObjectConflict, match="other content"):
            list(ObjectWriter(other, 100, {}).write([batch_of(events)]))


MANIFEST = Manifest(
    SPOT,
    None,
    tuple(
        Written(f"archive/orders/1970/01/01/o{n}", "orders", 0, position(n), position(n), 5, 99, "ab" * 32)
        for n in range(3)
    ),
)
KEYS = ["version", "channel", "partition", "after", "first", "last", "rows", "objects"]
INNER = ["object", "first", "last", "rows", "bytes", "sha256", "channel", "x"]


@fuzzed()
@given(st.one_of(BYTES, JSON.filter(_dumps).map(orjson.dumps)))
def test_any_bytes_are_a_manifest_or_a_conflict(data: bytes) -> None:
    assert attempt(decode_manifest, data, MANIFEST.name) is REFUSED


@fuzzed(2)
@given(
    st.dictionaries(st.sampled_from(KEYS), JSON.filter(_dumps), max_size=2),
    st.dictionaries(st.sampled_from(INNER), JSON.filter(_dumps), max_size=2),
)
@example({"partition": True}, {})
@example({}, {"sha256": 5})
@example({}, {"rows": 5.0})
@example({"objects": []}, {})
@example({}, {"object": "../../etc/passwd"})
def test_a_changed_manifest_is_sound_or_a_conflict(outer: dict[str, Any], inner: dict[str, Any]) -> None:
    found = orjson.loads(MANIFEST.encode())
    found["objects"][1].update(inner)
    found.update(outer)
    manifest = attempt(decode_manifest, orjson.dumps(found, option=orjson.OPT_APPEND_NEWLINE), MANIFEST.name)
    if manifest is not REFUSED:
        assert decode_manifest(manifest.encode(), manifest.name) == manifest
        for each in manifest.objects:
            assert type(each.rows) is type(each.bytes) is type(each.partition) is int
            assert isinstance(each.sha256, str)
            assert ".." not in each.object.split("/")


@fuzzed()
@given(BITS, st.integers(0, 5_000))
def test_a_flipped_manifest_is_found_at_once_or_by_its_objects(
    tmp_path_factory: pytest.TempPathFactory, store: FolderStore, written: Written, bit: int, size: int
) -> None:
    whole = Manifest(SPOT, None, (written,))
    data = whole.encode()
    assert attempt(decode_manifest, data[: size % len(data)], whole.name) is REFUSED
    changed = attempt(decode_manifest, flipped(data, bit), whole.name)
    if changed is not REFUSED:
        assert any(check(store, each) is not None for each in changed.objects)
    broken = FolderStore(tmp_path_factory.mktemp("broken"))
    broken.put(whole.name, flipped(data, bit))
    catalog = read_catalog(broken)
    assert bool(catalog.broken) == (changed is REFUSED)
