"""Durations and sizes: what people write is read as it was meant, and printed so that it is read back."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from hostile import JSON, REFUSED, TEXTS, attempt, fuzzed
from hypothesis import given
from hypothesis import strategies as st

from holdfast.config.values import format_size, parse_size
from holdfast.model.duration import LONGEST, format_duration, parse_duration
from holdfast.model.errors import InvalidInput
from holdfast.model.policy import Policy

WRITTEN = st.text("0123456789.smhdwi KMGTBe-", max_size=30)


@fuzzed()
@given(st.one_of(TEXTS, WRITTEN, JSON, st.timedeltas()))
def test_a_duration_is_read_or_refused(value: Any) -> None:
    found = attempt(parse_duration, value)
    if found is not REFUSED:
        assert timedelta(0) <= found <= LONGEST
        assert parse_duration(format_duration(found)) == found


@fuzzed()
@given(st.timedeltas(timedelta(0), LONGEST))
def test_every_duration_is_printed_so_that_it_is_read_back(value: timedelta) -> None:
    assert parse_duration(format_duration(value)) == value


@fuzzed()
@given(st.one_of(TEXTS, WRITTEN, JSON))
def test_a_size_is_read_or_refused(value: Any) -> None:
    found = attempt(parse_size, value)
    if found is not REFUSED and 0 <= found < 2**63:
        assert parse_size(format_size(found)) == found


@pytest.mark.parametrize("digits", ["9" * 400, "9" * 5_000, "9" * 400 + ".5"])
def test_a_size_beyond_every_number_is_refused(digits: str) -> None:
    for unit in ("", "B", "TB", "GiB"):
        with pytest.raises(InvalidInput):
            parse_size(digits + unit)


def test_a_number_that_python_does_not_print_is_refused() -> None:
    for number in (10**5_000, -(10**5_000)):
        with pytest.raises(InvalidInput, match=r"too long|negative"):
            parse_duration(number)


@fuzzed()
@given(
    st.dictionaries(
        st.one_of(st.sampled_from([*Policy.__slots__, "x"])),
        st.one_of(
            JSON, st.fixed_dictionaries({"base": JSON, "limit": JSON}, optional={"factor": JSON, "y": JSON})
        ),
        max_size=4,
    )
)
def test_a_stored_policy_is_read_or_refused(stored: dict[str, Any]) -> None:
    found = attempt(Policy.from_json, stored)
    if found is not REFUSED:
        assert Policy.from_json(found.to_json()) == found
