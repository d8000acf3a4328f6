"""Offsets as Spark keeps them."""

from __future__ import annotations

import json

import pytest

from holdfast.model.errors import InvalidInput
from holdfast.pipeline.offsets import ChannelPartition, Offsets, Range, dump, later, load, ranges

A, B, C = ChannelPartition(0, "a"), ChannelPartition(0, "b"), ChannelPartition(1, "a")


def test_they_come_back_as_they_went() -> None:
    offsets: Offsets = {A: "0001-01", B: None, C: "0001-02"}
    stored = json.loads(json.dumps(dump(offsets)))
    assert stored == {"0": {"a": "0001-01", "b": ""}, "1": {"a": "0001-02"}}
    assert load(stored, stores=2) == offsets


def test_the_same_offsets_are_the_same_text() -> None:
    many: Offsets = {ChannelPartition(place, name): "0001-01" for place in (10, 9, 0) for name in ("b", "a")}
    assert json.dumps(dump(many)) == json.dumps(dump(dict(reversed(many.items()))))


def test_a_store_that_is_no_longer_listed_is_refused() -> None:
    with pytest.raises(InvalidInput, match="written with at least 3 stores, and url lists 2; list the same"):
        load({"2": {"a": ""}}, stores=2)


def test_a_batch_reads_what_lies_between() -> None:
    start: Offsets = {A: None, B: "0001-05", C: "0001-07"}
    end: Offsets = {C: "0001-09", B: "0001-05", A: "0001-01"}
    assert list(ranges(start, end)) == [Range(A, None, "0001-01"), Range(C, "0001-07", "0001-09")]


def test_a_channel_that_enters_has_no_rows_yet() -> None:
    assert list(ranges({A: None}, {A: None, B: "0001-05"})) == []


def test_the_later_of_two_positions() -> None:
    assert later(None, None) is None
    assert later("0001-01", None) == later(None, "0001-01") == "0001-01"
    assert later("0001-01", "0001-02") == later("0001-02", "0001-01") == "0001-02"
