"""Positions: text that sorts as the numbers do."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.model.errors import InvalidInput
from holdfast.model.position import format_position, parse_position

numbers = st.integers(0, 2**63 - 1)
positions = st.tuples(st.integers(0, 0xFFFF), numbers, numbers)


@given(positions)
def test_what_is_written_is_read_back(position: tuple[int, int, int]) -> None:
    assert parse_position(format_position(*position), 2) == position


@given(positions, positions)
def test_text_sorts_as_the_numbers_do(one: tuple[int, int, int], other: tuple[int, int, int]) -> None:
    assert (format_position(*one) < format_position(*other)) == (one < other)


@given(st.tuples(numbers, numbers), st.tuples(numbers, numbers), st.integers(0, 0xFFFE))
def test_a_later_epoch_is_above_everything(old: tuple[int, int], new: tuple[int, int], epoch: int) -> None:
    assert format_position(epoch, *old) < format_position(epoch + 1, *new)


@given(st.text() | st.from_regex(r"[0-9a-f]{4}(-[0-9a-f]{16}){1,4}", fullmatch=True))
def test_anything_else_is_refused_by_name(text: str) -> None:
    try:
        read = parse_position(text, 2)
    except InvalidInput as error:
        named = repr(text) in str(error)
    else:
        named = format_position(*read) == text
    assert named


@pytest.mark.parametrize(
    "text",
    ["", "0001", "0001-00", "1-2-3", "0001-" + "0" * 16, "0001" + ("-" + "0" * 16) * 3, "0001-" + "G" * 16],
)
def test_positions_of_another_kind_of_store_are_refused(text: str) -> None:
    with pytest.raises(InvalidInput):
        parse_position(text, 2)
