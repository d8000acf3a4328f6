"""Transaction ids: the same on every read, different for every event. Names that follow from positions."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.model.errors import Damaged
from holdfast.pipeline.stores import check_key
from holdfast.pipeline.wal.batch import (
    BatchPart,
    Segment,
    WalBatch,
    failed_id,
    transaction_id,
    transaction_ids,
)
from holdfast.pipeline.wal.records import seal, unseal

NOW = datetime(2026, 3, 1, tzinfo=UTC)
PARTS = st.tuples(st.text(max_size=8), st.text(max_size=8), st.text(max_size=8))


def test_it_follows_from_channel_source_and_id_alone() -> None:
    parts = b"6:orders", b"4:shop", b"3:o-1"
    assert transaction_id("orders", "shop", "o-1") == hashlib.sha256(b"".join(parts)).hexdigest()[:32]


def test_many_at_once_are_the_same_as_one_by_one() -> None:
    sources, ids = ["a", "b", "a"], ["1", "1", "2"]
    names, hashes = transaction_ids(["orders"] * len(ids), sources, ids)
    assert names == [transaction_id("orders", *each) for each in zip(sources, ids, strict=True)]
    assert hashes == [int.from_bytes(bytes.fromhex(name)[:8], "big", signed=True) for name in names]


@given(PARTS, PARTS)
def test_parts_never_run_together(one: tuple[str, str, str], other: tuple[str, str, str]) -> None:
    assert (transaction_id(*one) == transaction_id(*other)) == (one == other)


def test_a_failed_record_has_one_id_for_each_place_in_the_log() -> None:
    assert failed_id("b", "p") == failed_id("b", "p")
    assert len({failed_id("b", "p"), failed_id("b", "q"), failed_id("c", "p")}) == 3


RANGES = (
    BatchPart(0, "orders", "0001-01", "0001-09"),
    BatchPart(2, "gbe.events.audit-1", "0001-02", "0001-02"),
)


def test_a_batch_is_named_by_its_ranges_alone() -> None:
    batch = WalBatch(RANGES, (), NOW)
    assert check_key(f"pending/{batch.name}.json")
    known = tuple(part._replace(after="0001-00", rows=7, since=NOW.isoformat()) for part in reversed(RANGES))
    assert WalBatch(known, (Segment("s", "0", 1, 1),), NOW + timedelta(days=1)).name == batch.name
    others = [WalBatch((part,), (), NOW) for part in RANGES]
    others.append(WalBatch((RANGES[0]._replace(last="0001-0a"), RANGES[1]), (), NOW))
    assert len({batch.name, *(other.name for other in others)}) == 4


def test_a_batch_of_another_version_is_not_read() -> None:
    body = WalBatch(RANGES, (), NOW).to_json()
    assert WalBatch.from_json(body).parts == RANGES
    with pytest.raises(Damaged, match="version 2"):
        WalBatch.from_json(body | {"version": 2})


@given(st.integers(0, 10_000), st.integers(1, 255))
def test_no_byte_of_a_record_can_change_unseen(place: int, change: int) -> None:
    data = bytearray(seal({"rows": 12, "name": "grün"}))
    data[place % len(data)] ^= change
    if bytes(data) == seal({"rows": 12, "name": "grün"}):
        return
    with pytest.raises(Damaged, match="pending/b"):
        unseal("pending/b", bytes(data))


def test_a_torn_record_shows() -> None:
    data = seal({"rows": 12})
    for length in range(len(data)):
        with pytest.raises(Damaged):
            unseal("x", data[:length])
    assert unseal("x", data) == {"rows": 12}
