"""Positions and offsets: where a reader goes on, from a receipt, a checkpoint or an option of Spark's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hostile import BYTES, JSON, REFUSED, TEXTS, attempt, fuzzed
from hypothesis import example, given
from hypothesis import strategies as st

from holdfast.backends.postgres.positions import numbers as postgres_place
from holdfast.backends.redis.codec import entry_of
from holdfast.model.errors import InvalidInput
from holdfast.model.position import format_position, parse_position
from holdfast.pipeline.driver import checkpoint_agrees, discard_stale_checkpoint
from holdfast.pipeline.offsets import ChannelPartition, dump, load
from holdfast.pipeline.options import Options

FIELDS = st.integers(0, 2**63 - 1)
POSITIONS = st.builds(format_position, st.integers(0, 0xFFFF), FIELDS, FIELDS)
STORED = st.dictionaries(
    st.one_of(st.sampled_from(["0", "1"]), TEXTS, st.integers(-3, 3).map(str)),
    st.one_of(
        JSON, st.dictionaries(st.one_of(st.just("orders"), TEXTS), st.one_of(POSITIONS, JSON), max_size=3)
    ),
    max_size=3,
)


@fuzzed()
@given(st.one_of(TEXTS, st.text("0123456789abcdef-", max_size=60), POSITIONS), st.integers(1, 3))
def test_a_position_is_read_back_or_refused(text: str, fields: int) -> None:
    numbers = attempt(parse_position, text, fields)
    if numbers is not REFUSED:
        assert format_position(*numbers) == text
    for store in (postgres_place, entry_of):
        attempt(store, text)


@fuzzed()
@given(st.integers(0, 0xFFFF), FIELDS, FIELDS, POSITIONS)
def test_positions_sort_as_their_numbers_do(epoch: int, first: int, second: int, other: str) -> None:
    mine = format_position(epoch, first, second)
    assert (mine < other) == (parse_position(mine, 2) < parse_position(other, 2))


@fuzzed()
@given(st.one_of(STORED, JSON), st.integers(1, 3))
@example({"-1": {"orders": "0001-0000000000000001-0000000000000001"}}, 2)
@example({"0": {"orders": 5}}, 1)
@example({"1_0": {"orders": ""}}, 11)
@example({"9" * 5_000: {"orders": ""}}, 1)
def test_offsets_of_a_checkpoint_are_read_back_or_refused(stored: Any, stores: int) -> None:
    offsets = attempt(load, stored, stores)
    if offsets is not REFUSED:
        assert all(0 <= spot.partition < stores for spot in offsets)
        assert load(json.loads(json.dumps(dump(offsets))), stores) == offsets


@fuzzed()
@given(st.lists(BYTES, max_size=4), st.lists(BYTES, max_size=4))
def test_a_checkpoint_is_understood_or_begun_afresh(
    tmp_path_factory: pytest.TempPathFactory, planned: list[bytes], done: list[bytes]
) -> None:
    folder = tmp_path_factory.mktemp("checkpoint")
    for name, lines in (("offsets", planned), ("commits", done)):
        (folder / name).mkdir()
        (folder / name / "0").write_bytes(b"\n".join(lines))
    discard_stale_checkpoint(folder, {ChannelPartition(0, "orders"): None})
    assert not checkpoint_agrees(None, {}, {})


def test_a_checkpoint_of_wrong_types_is_begun_afresh(tmp_path: Path) -> None:
    for number, line in enumerate(['{"0":{"orders":5}}', '{"0":5}', "5", '{"x":{"orders":""}}', "[" * 5_000]):
        folder = tmp_path / str(number)
        for name in ("offsets", "commits"):
            (folder / name).mkdir(parents=True)
            (folder / name / "0").write_text(f"v1\n{{}}\n{line}")
        assert discard_stale_checkpoint(folder, {ChannelPartition(0, "orders"): None})


@fuzzed()
@given(
    st.dictionaries(
        st.one_of(
            st.sampled_from(
                [
                    "channel",
                    "url",
                    "consumer",
                    "startingPosition",
                    "endingPosition",
                    "maxRowsPerBatch",
                    "failOnDataLoss",
                ]
            ),
            TEXTS,
        ),
        st.one_of(
            TEXTS,
            POSITIONS,
            st.sampled_from(["orders", "earliest", "latest", "2026-07-01T00:00:00Z", "1", "true"]),
        ),
        max_size=5,
    )
)
def test_options_of_the_source_are_read_or_refused(given_options: dict[str, str]) -> None:
    attempt(Options.of, given_options)


@pytest.mark.parametrize("name", ["maxRowsPerBatch", "rowsPerPartition"])
def test_a_count_of_thousands_of_digits_is_refused(name: str) -> None:
    with pytest.raises(InvalidInput, match=name):
        Options.of({"channel": "orders", "url": "redis://localhost", name: "9" * 5_000})
