"""Fingerprints: one cluster for errors that differ only in what changes from case to case."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.model.deadletters import fingerprint, normalise


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("order 17 not found", "order 4711 not found"),
        ("took 1.5 s", "took 12.75 s"),
        ("no user 'anna'", "no user 'bob'"),
        ('no user "anna"', 'no user "bob"'),
        ("at 0x7f3a", "at 0xdeadbeef"),
        ("job 0190b3c4-7d5e-7abc-8def-0123456789ab", "job ffffffff-ffff-7fff-bfff-ffffffffffff"),
        ("commit 3f2a9c81d0e4b5", "commit 9e8d7c6b5a4f3210"),
        ("cannot open /var/lib/a.txt", "cannot open /home/me/b.csv"),
        ("GET https://a.example/x/y failed", "GET https://b.example/z/w failed"),
        ("a\n  b", "a b"),
    ],
)
def test_noise_does_not_part(one: str, other: str) -> None:
    assert normalise(one) == normalise(other)
    assert fingerprint("E", one) == fingerprint("E", other)


@pytest.mark.parametrize(
    ("one", "other"),
    [("card declined", "card expired"), ("order not found", "user not found"), ("timeout", "time out")],
)
def test_different_errors_are_apart(one: str, other: str) -> None:
    assert fingerprint("E", one) != fingerprint("E", other)


def test_the_kind_counts() -> None:
    assert fingerprint("ValueError", "no") != fingerprint("KeyError", "no")


@given(st.text(), st.text(max_size=4000))
def test_every_error_has_one(kind: str, error: str) -> None:
    assert re.fullmatch(r"[0-9a-f]{16}", fingerprint(kind, error))
    assert fingerprint(kind, error) == fingerprint(kind, error)


@given(st.integers(0, 10**30), st.integers(0, 10**30))
def test_numbers_never_part(one: int, other: int) -> None:
    assert fingerprint("", f"item {one} of {other}") == fingerprint("", "item 1 of 2")


@pytest.mark.parametrize(
    "text",
    ["'", "/a", "0x", "a:/", "1.", " ", "a", "a.", "a1", "a1-", "'\"", "http:/", "/a ", "0x1g", "\t "],
)
def test_hostile_errors_cost_little(text: str) -> None:
    """An error of 16 KiB, as a header can have it, costs about a millisecond; it was 260."""
    error = (text * 16_300)[:16_300]
    began = time.process_time()
    for _ in range(100):
        fingerprint("E", error)
    assert time.process_time() - began < 2


def test_a_fingerprint_stays_what_it_was() -> None:
    """Stored clusters must not fall apart with an upgrade: change this only knowingly."""
    assert fingerprint("ValueError", "order 17 not found") == fingerprint("ValueError", "order <n> not found")
    assert fingerprint("ValueError", "order 17 not found") == "981202bebb2f3fe2"
