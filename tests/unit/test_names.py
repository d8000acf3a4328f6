"""Names of channels and consumers, and patterns over channels."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.model.errors import InvalidName
from holdfast.model.names import check_name, compile_pattern, matches, selects

names = st.from_regex(r"[a-z0-9][a-z0-9_-]{0,9}(\.[a-z0-9_-]{1,10}){0,4}", fullmatch=True)
patterns = st.from_regex(r"([a-z0-9]+|\*)(\.([a-z0-9]+|\*)){0,3}(\.>)?", fullmatch=True)


@pytest.mark.parametrize(
    "name", ["a", "0", "orders", "gbe.events.audit.change", "a-b", "a_b", "x" * 128, "1.2.3"]
)
def test_good_names(name: str) -> None:
    assert check_name(name) == name


@pytest.mark.parametrize(
    "name",
    [
        "",
        "A",
        "a b",
        "a/b",
        "../a",
        "a..b",
        ".a",
        "a.",
        "-a",
        "_a",
        "a*",
        ">",
        "a\x00",
        "a\n",
        "ä",
        "x" * 129,
    ],
)
def test_bad_names_are_named(name: str) -> None:
    with pytest.raises(InvalidName) as caught:
        check_name(name, "consumer")
    assert str(caught.value).startswith(f"consumer name {name!r}")


@given(st.text(max_size=200))
def test_a_name_that_passes_is_safe_as_a_key_and_as_a_path(name: str) -> None:
    try:
        check_name(name)
    except InvalidName:
        return
    assert re.fullmatch(r"[a-z0-9][a-z0-9._-]{0,127}", name)
    assert all(name.split("."))


@pytest.mark.parametrize(
    ("pattern", "channel", "selected"),
    [
        ("orders", "orders", True),
        ("orders", "orders.eu", False),
        ("*", "orders", True),
        ("*", "orders.eu", False),
        (">", "orders.eu", True),
        ("orders.*", "orders.eu", True),
        ("orders.*", "orders", False),
        ("orders.*", "orders.eu.de", False),
        ("orders.>", "orders.eu.de", True),
        ("orders.>", "orders", False),
        ("*.events.>", "gbe.events.audit.change", True),
        ("*.events.>", "gbe.tasks.audit", False),
        ("a.b", "axb", False),
    ],
)
def test_patterns_select(pattern: str, channel: str, selected: bool) -> None:
    assert matches(pattern, channel) is selected


@pytest.mark.parametrize(
    ("pattern", "channel", "selected"),
    [
        (">", "orders", True),
        (">", "gbe.events.audit.change", True),
        (">", "gbe.events.system.archive", False),
        ("gbe.events.>", "gbe.events.system.sweep", False),
        ("gbe.events.*.*", "gbe.events.system.sweep", False),
        (">", "other.events.system.archive", False),
        ("gbe.events.system.*", "gbe.events.system.archive", True),
        ("gbe.events.system.audit", "gbe.events.system.audit", True),
        (">", "gbe.events.systematic", True),
    ],
)
def test_the_systems_own_events_must_be_named(pattern: str, channel: str, selected: bool) -> None:
    assert selects(pattern, channel) is selected


@pytest.mark.parametrize("pattern", ["", "a..b", "a.>.b", "A", "a*", "a.b*", "a.", "a b", "a\n"])
def test_bad_patterns_are_named(pattern: str) -> None:
    with pytest.raises(InvalidName) as caught:
        compile_pattern(pattern)
    assert repr(pattern) in str(caught.value)


@given(names)
def test_a_name_selects_itself_and_the_tail_selects_all(name: str) -> None:
    assert matches(name, name)
    assert matches(">", name)
    assert matches(".".join("*" for _ in name.split(".")), name)


@given(patterns, names)
def test_a_pattern_selects_token_by_token(pattern: str, channel: str) -> None:
    wanted, given_tokens = pattern.split("."), channel.split(".")
    if wanted[-1] == ">":
        fits = len(given_tokens) >= len(wanted)
        wanted, given_tokens = wanted[:-1], given_tokens[: len(wanted) - 1]
    else:
        fits = len(given_tokens) == len(wanted)
    fits = fits and all(w in ("*", t) for w, t in zip(wanted, given_tokens, strict=True))
    assert matches(pattern, channel) == fits
