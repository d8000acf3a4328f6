"""Names, patterns and keys of objects: usable on every store, or refused."""

from __future__ import annotations

import re
import time

import pytest
from hostile import REFUSED, TEXTS, attempt, fuzzed
from hypothesis import given
from hypothesis import strategies as st

from holdfast.model.errors import InvalidName
from holdfast.model.names import check_name, check_token, compile_pattern, matches, most_specific
from holdfast.pipeline.archive.objects import ObjectRange, object_name, parse_object
from holdfast.pipeline.stores import check_key

NEARLY = st.text("ab0._-*>/@ \0\n", max_size=140)
"""Texts that are often names, and often just not."""


@fuzzed()
@given(st.one_of(TEXTS, NEARLY))
def test_a_name_is_safe_as_key_and_path_or_refused(text: str) -> None:
    name = attempt(check_name, text)
    if name is not REFUSED:
        assert name == text
        assert re.fullmatch(r"[a-z0-9][a-z0-9._-]{0,127}", name, re.ASCII)
        assert all(name.split("."))
        assert attempt(check_key, f"manifests/{name}/x") is not REFUSED


@fuzzed()
@given(st.one_of(TEXTS, NEARLY), st.one_of(TEXTS, NEARLY))
def test_a_pattern_selects_or_is_refused(pattern: str, channel: str) -> None:
    compiled = attempt(compile_pattern, pattern)
    attempt(check_token, pattern, "token")
    if compiled is not REFUSED:
        assert matches(pattern, channel) == (most_specific([pattern], channel) == pattern)
        if attempt(check_name, pattern) is not REFUSED:
            assert matches(pattern, pattern)


def test_a_pattern_longer_than_any_name_costs_nothing() -> None:
    began = time.process_time()
    for number in range(20):
        with pytest.raises(InvalidName, match="128"):
            compile_pattern(".".join(["*"] * 300_000) + f".{number}")
    assert time.process_time() - began < 2


@fuzzed()
@given(st.one_of(TEXTS, NEARLY))
def test_a_key_never_leaves_its_store(text: str) -> None:
    key = attempt(check_key, text)
    if key is not REFUSED:
        assert not key.startswith("/")
        assert not any(part in ("", ".", "..") for part in key.split("/"))
        assert "\0" not in key


@fuzzed()
@given(st.one_of(TEXTS, NEARLY))
def test_names_of_objects_are_read_back_or_refused(text: str) -> None:
    found = parse_object(text)
    if found is not None and attempt(check_name, found.channel) is not REFUSED:
        assert parse_object(object_name(found, 0)) == found


@fuzzed()
@given(
    st.from_regex(r"[a-z0-9][a-z0-9_-]{0,20}(\.[a-z0-9_-]{1,20}){0,3}", fullmatch=True), st.integers(0, 10**4)
)
def test_a_batch_is_named_and_found_again(channel: str, number: int) -> None:
    batch = ObjectRange(channel, number, f"0001-{number:016x}", f"0001-{number + 1:016x}")
    assert parse_object(object_name(batch, number)) == batch
