"""Durations as people write them."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.model.duration import LONGEST, format_duration, parse_duration
from holdfast.model.errors import InvalidInput


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30s", 30),
        ("1h30m", 5400),
        ("7d", 604_800),
        ("2w", 1_209_600),
        ("250ms", 0.25),
        ("1.5s", 1.5),
        ("1d1h1m1s1ms", 90_061.001),
        (" 5m ", 300),
        ("0s", 0),
        (0, 0),
        (90, 90),
        (0.5, 0.5),
        (timedelta(hours=2), 7200),
    ],
)
def test_what_people_write_is_read(text: Any, seconds: float) -> None:
    assert parse_duration(text) == timedelta(seconds=seconds)


NOT_EVEN_TEXT: list[Any] = [None, True, [], b"5s", timedelta(microseconds=-1), float("nan")]
OUT_OF_RANGE: list[Any] = [-1, -0.001, float("inf"), float("-inf"), 10**400, "9" * 400 + "s", "36501d"]


@pytest.mark.parametrize(
    "value",
    ["", "30", "s", "5 m", "-5s", "5s5", "1y", "1e3s", "1.s", ".5s", "five", *NOT_EVEN_TEXT, *OUT_OF_RANGE],
    ids=lambda value: repr(value)[:20],
)
def test_nonsense_is_refused_by_name(value: Any) -> None:
    with pytest.raises(InvalidInput) as caught:
        parse_duration(value)
    assert repr(value)[:50] in str(caught.value)


@pytest.mark.parametrize("value", [-1, "40000d"])
def test_the_message_says_what_it_was_for(value: Any) -> None:
    with pytest.raises(InvalidInput, match=f"lease {value!r}"):
        parse_duration(value, what="lease")


@given(st.one_of(st.text(), st.integers(), st.floats(), st.booleans(), st.none(), st.binary()))
def test_anything_is_read_or_refused(value: Any) -> None:
    try:
        parsed = parse_duration(value)
    except InvalidInput:
        return
    assert timedelta(0) <= parsed <= LONGEST


@given(st.timedeltas(min_value=timedelta(0), max_value=LONGEST))
def test_what_is_written_is_read_back(value: timedelta) -> None:
    assert parse_duration(format_duration(value)) == value


@pytest.mark.parametrize(
    "text", ["0s", "1ms", "250ms", "1s", "1m30s", "2h", "7d", "1d1ms", "0.000001s", "1.5s"]
)
def test_the_text_is_short(text: str) -> None:
    expected = {"1.5s": "1s500ms"}.get(text, text)
    assert format_duration(parse_duration(text)) == expected
