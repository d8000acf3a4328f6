"""The WAL: a record or a segment is what was written, or it is damaged; nothing in between is served."""

from __future__ import annotations

import hashlib
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hostile import BITS, BYTES, JSON, REFUSED, TEXTS, attempt, flipped, fuzzed
from hypothesis import given
from hypothesis import strategies as st

from holdfast.model.errors import Damaged
from holdfast.pipeline.stores.folder import FolderStore
from holdfast.pipeline.wal import segments
from holdfast.pipeline.wal.batch import BatchPart, Segment, WalBatch
from holdfast.pipeline.wal.log import Wal, WalSettings
from holdfast.pipeline.wal.records import (
    Act,
    Attempt,
    Confirmation,
    Damage,
    Failure,
    GaveUp,
    Lease,
    WalRecord,
    seal,
    unseal,
)

NOW = datetime(2026, 7, 1, tzinfo=UTC)
PART = BatchPart(0, "orders", "0001-0000000000000001", "0001-0000000000000009", rows=3)
BATCH = WalBatch((PART,), (Segment("segments/a.parquet", "0" * 64, 9, 100),), NOW)
NAME = BATCH.name
RECORDS: list[WalRecord] = [
    Lease("b", 1, 1, "h", NOW, NOW),
    Attempt(1, "h", NOW, NOW, "boom", True),
    Confirmation(NOW, "h", 9, 8, 1, 0),
    Damage(NOW, "torn"),
    GaveUp(NOW, "expired", "wal", None, 3),
    Act("retry", "me", NOW),
]
PLAIN = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**63), 2**63 - 1),
        st.text(st.characters(codec="utf-8"), max_size=20),
    ),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3),
    max_leaves=8,
)
TABLE = pa.table({field.name: pa.array([None] * 3, field.type) for field in segments.SCHEMA})


@fuzzed()
@given(st.dictionaries(st.text(max_size=9), PLAIN, max_size=4))
def test_a_record_is_read_as_it_was_written(body: dict[str, Any]) -> None:
    assert unseal("r", seal(body)) == body


@fuzzed()
@given(BITS, st.integers(0, 10_000), BYTES)
def test_a_changed_record_is_damaged(bit: int, size: int, junk: bytes) -> None:
    whole = seal(BATCH.to_json())
    for data in (flipped(whole, bit), whole[: size % len(whole)], whole + junk if junk else b"", junk):
        with pytest.raises(Damaged, match="pending/b"):
            unseal("pending/b", data)


@fuzzed()
@given(BYTES)
def test_a_sealed_record_that_is_none_is_damaged(text: bytes) -> None:
    data = b'{"sha256":"%b","record":%b}\n' % (hashlib.sha256(text).hexdigest().encode(), text)
    found = attempt(unseal, "r", data)
    assert found is REFUSED or isinstance(found, dict)


@fuzzed()
@given(
    st.dictionaries(
        st.one_of(st.sampled_from([*BATCH.to_json(), *Lease.__slots__, "failed_at"]), TEXTS), JSON, max_size=8
    )
)
def test_a_record_of_another_kind_or_version_is_damaged(body: dict[str, Any]) -> None:
    for kind in (WalBatch, Lease, Attempt, Confirmation, Damage, GaveUp, Failure, Act):
        attempt(kind.from_json, body)
    for record in (BATCH, *RECORDS):
        assert attempt(type(record).from_json, {**record.to_json(), **body}) is not None


@pytest.mark.parametrize("record", [BATCH, *RECORDS], ids=lambda record: type(record).__name__)
def test_every_record_comes_back(record: WalBatch | WalRecord) -> None:
    assert type(record).from_json(unseal("r", seal(record.to_json()))) == record


@pytest.fixture
def wal(tmp_path: Path) -> Wal:
    return Wal(FolderStore(tmp_path), WalSettings(path=str(tmp_path)))


def staged(wal: Wal, table: pa.Table, name: str = "segments/orders@0/a.parquet") -> Segment:
    data = segments.encode(table)
    wal.store.put(name, data)
    return Segment(name, hashlib.sha256(data).hexdigest(), table.num_rows, len(data))


@fuzzed()
@given(BITS, st.integers(0, 100_000))
def test_a_changed_segment_is_damaged(tmp_path_factory: pytest.TempPathFactory, bit: int, size: int) -> None:
    store = FolderStore(tmp_path_factory.mktemp("wal"))
    data = segments.encode(TABLE)
    segment = Segment("a.parquet", hashlib.sha256(data).hexdigest(), 3, len(data))
    for name, changed in (("a", flipped(data, bit)), ("b", data[: size % len(data)]), ("c", data + b"\0")):
        store.put(f"{name}.parquet", changed)
        with pytest.raises(Damaged):
            segments.read(store, segment._replace(name=f"{name}.parquet"))
    store.put("whole.parquet", data)
    assert segments.read(store, segment._replace(name="whole.parquet")).equals(TABLE)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"PAR1",
        b"PAR1" + b"\0" * 100 + b"PAR1",
        b"PAR1" + b"\xff" * 100 + b"\xff\xff\xff\x7fPAR1",
    ],
)
def test_a_file_with_its_checksum_that_is_no_segment_is_damaged(wal: Wal, data: bytes) -> None:
    wal.store.put("a.parquet", data)
    with pytest.raises(Damaged):
        segments.read(wal.store, Segment("a.parquet", hashlib.sha256(data).hexdigest(), 3, len(data)))


@fuzzed(0.5)
@given(BITS)
def test_a_segment_that_lies_about_itself_is_damaged_or_has_its_rows(
    tmp_path_factory: pytest.TempPathFactory, bit: int
) -> None:
    """The checksum is made to fit: what is left is what a reader of Parquet itself finds."""
    store = FolderStore(tmp_path_factory.mktemp("wal"))
    data = flipped(segments.encode(TABLE), bit)
    store.put("a.parquet", data)
    found = attempt(
        segments.read, store, Segment("a.parquet", hashlib.sha256(data).hexdigest(), 3, len(data))
    )
    assert found is REFUSED or (found.num_rows == 3 and found.schema.equals(segments.SCHEMA))


def test_a_segment_of_another_schema_or_size_is_damaged(wal: Wal) -> None:
    for number, table in enumerate(
        (pa.table({"a": [1, 2, 3]}), TABLE.slice(0, 2), TABLE.drop_columns(["problem"]))
    ):
        sink = pa.BufferOutputStream()
        pq.write_table(table, sink)
        data = sink.getvalue().to_pybytes()
        wal.store.put(f"{number}.parquet", data)
        with pytest.raises(Damaged, match="rows of"):
            segments.read(
                wal.store, Segment(f"{number}.parquet", hashlib.sha256(data).hexdigest(), 3, len(data))
            )


@fuzzed(0.5)
@given(st.sampled_from(["pending", "repairs", "attempts", "confirmed", "failed", "quarantine"]), BITS)
def test_a_damaged_journal_stops_no_other_batch(
    tmp_path_factory: pytest.TempPathFactory, folder: str, bit: int
) -> None:
    wal = Wal(FolderStore(tmp_path_factory.mktemp("wal")), WalSettings(path="x"))
    good = WalBatch((PART._replace(channel="good"),), (staged(wal, TABLE, "segments/good.parquet"),), NOW)
    wal.commit(good)
    wal.commit(WalBatch((PART,), (staged(wal, TABLE),), NOW))
    names = {"pending": NAME, "confirmed": NAME, "failed": f"{NAME}/rest"}
    path = (
        Path(wal.store.url.removeprefix("file://")) / folder / f"{names.get(folder, f'{NAME}/000001')}.json"
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(flipped(path.read_bytes() if path.exists() else seal({"a": 1}), bit))
    assert good in wal.pending()


def test_a_record_under_the_name_of_another_is_damaged(wal: Wal) -> None:
    wal.commit(WalBatch((PART,), (staged(wal, TABLE),), NOW))
    other = WalBatch((PART._replace(channel="other"),), (), NOW)
    wal.store.put(f"pending/{other.name}.json", wal.store.get(f"pending/{NAME}.json"))
    with pytest.raises(Damaged, match=f"is that of {NAME}"):
        wal.batch(other.name)
    assert [batch.name for batch in wal.pending()] == [NAME]
    assert wal.survey().quarantined == {other.name}


def test_a_segment_never_leads_out_of_the_wal(wal: Wal) -> None:
    body = BATCH.to_json()
    body["segments"][0]["name"] = "../../etc/passwd"
    batch = WalBatch.from_json(json.loads(orjson.dumps(body)))
    assert attempt(segments.read, wal.store, batch.segments[0]) is REFUSED
