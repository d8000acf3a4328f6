"""Hostile input: what every parser of ours is given, and what it may answer."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from typing import Any, Final

from hypothesis import Phase, settings
from hypothesis import strategies as st

from holdfast.model.errors import HoldfastError

LONG: Final = os.environ.get("HOLDFAST_FUZZ") == "long"
REFUSED: Final = object()
"""Stands for an error of ours."""

NASTY = (
    "",
    " ",
    ".",
    "..",
    "../../etc/passwd",
    "a..b",
    "a.",
    "\0",
    "a\0b",
    "a\nb",
    "\r\n\r\n",
    "\ud800",
    "\udcff",
    "\ufeff",
    "\u2028",
    "٣s",
    "²",
    "1e400",
    "NaN",
    "-0",
    "0x" + "f" * 5_000,
    "9" * 5_000,
    "[" * 5_000,
    '{"a":' * 5_000,
    "://:" * 500,
    "%00%ff%zz",
    "a" * 10_000,
    "[key]",
    "job:a:b:1@0",
    "${jndi:ldap://x}",
    "'; DROP TABLE log; --",
    "*.>",
    ">",
)
"""What has broken parsers before, ours or others."""

TEXTS = st.one_of(st.text(st.characters(), max_size=60), st.sampled_from(NASTY))
"""Any text, lone surrogates and controls included."""
BYTES = st.one_of(st.binary(max_size=200), TEXTS.map(lambda text: text.encode("utf-8", "surrogatepass")))
NUMBERS = st.one_of(
    st.integers(),
    st.sampled_from((0, -1, 2**31, 2**53, 2**63, 2**64, 10**400, -(10**400))),
    st.floats(),
)
SCALARS = st.one_of(st.none(), st.booleans(), NUMBERS, TEXTS)
JSON = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(TEXTS, inner, max_size=4)),
    max_leaves=12,
)
"""Any JSON value, and some that only look like one."""


ZONES = st.sampled_from([UTC, timezone(timedelta(hours=14)), timezone(timedelta(hours=-12))])
TIMES = st.one_of(
    st.datetimes(timezones=ZONES),
    ZONES.map(lambda zone: datetime.min.replace(tzinfo=zone)),
    ZONES.map(lambda zone: datetime.max.replace(tzinfo=zone)),
)
"""Times with a zone, from end to end of the calendar."""
FIELDS = st.one_of(
    st.sampled_from(
        [b"id", b"source", b"type", b"key", b"time", b"headers", b"data", b"published", b"at", b"priority"]
    ),
    BYTES,
)
VALUES = st.one_of(
    BYTES,
    st.sampled_from(
        [b"0001-01-01T00:00:00+14:00", b"9999-12-31T23:59:59-12:00", b"2026-07-01", b"9" * 16, b"9" * 5_000]
    ),
    JSON.map(lambda value: json.dumps(value, allow_nan=True).encode("utf-8", "surrogatepass")),
)
"""What a foreign client may put into an entry of a Redis stream."""


def fuzzed(share: float = 1.0, *, shrink: bool = True) -> settings:
    """How many examples a test gets: a share of those of the profile, for what is slow. Where each example
    asks a server, a failure is told as it was found: to make it smaller would take minutes."""
    profile = settings.get_profile("fuzz-long" if LONG else "fuzz")
    phases = list(Phase) if shrink else [Phase.explicit, Phase.generate]
    return settings(profile, max_examples=max(1, round(profile.max_examples * share)), phases=phases)


def attempt(parse: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """What a parser makes of its input, or `REFUSED` where it says what is wrong. All else is raised on."""
    try:
        return parse(*arguments, **options)
    except HoldfastError as error:
        if not str(error).strip():
            raise AssertionError(f"{type(error).__name__} says nothing") from error
        return REFUSED


def flipped(data: bytes, bit: int) -> bytes:
    """The same bytes but for one bit."""
    changed = bytearray(data)
    changed[bit // 8 % len(data)] ^= 1 << bit % 8
    return bytes(changed)


BITS = st.integers(0, 1 << 20)
"""For `flipped`: which bit."""
