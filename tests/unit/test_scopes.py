"""Scopes: what each kind of token may do, and where."""

from __future__ import annotations

from typing import get_args

import pytest

from holdfast.model.errors import InvalidInput
from holdfast.model.scopes import VERBS, Verb, scope_of

EVERYWHERE: list[tuple[str | None, str | None]] = [
    (None, None),
    ("orders", None),
    ("orders", "billing"),
    ("orders", "audit"),
    ("orders.eu", None),
    ("orders.eu", "billing"),
    ("stock", "billing"),
]


def allowed(kind: str, channel: str | None = None, consumer: str | None = None) -> dict[str, set[object]]:
    """Where a scope allows each verb."""
    scope = scope_of(kind, channel, consumer)
    found = {verb: {where for where in EVERYWHERE if scope.allows(verb, *where)} for verb in get_args(Verb)}
    return {verb: places for verb, places in found.items() if places}


def test_an_admin_may_do_everything_everywhere() -> None:
    assert allowed("admin") == {verb: set(EVERYWHERE) for verb in get_args(Verb)}


def test_a_producer_publishes_on_the_channels_of_its_pattern() -> None:
    assert allowed("producer", "orders.*") == {"publish": {("orders.eu", None), ("orders.eu", "billing")}}
    assert allowed("producer") == {"publish": set(EVERYWHERE)}


def test_a_reader_reads_the_channels_of_its_pattern() -> None:
    assert allowed("reader", "stock") == {"read": {("stock", "billing")}}
    assert allowed("reader") == {"read": set(EVERYWHERE)}


OURS = ("gbe.events.system.audit", "gbe.events.system.sweep", "gbe._deadletter.orders")


@pytest.mark.parametrize(
    ("pattern", "reads", "publishes"),
    [
        (None, OURS[1:], ()),
        ("gbe.>", (), ()),
        ("gbe.*.*", (), ()),
        ("*.*.*.audit", (), ()),
        ("gbe.events.system.>", OURS[:2], OURS[:2]),
        ("*.events.system.audit", OURS[:1], OURS[:1]),
        ("gbe._deadletter.*", OURS[2:], OURS[2:]),
    ],
)
def test_what_holdfast_writes_must_be_named(
    pattern: str | None, reads: tuple[str, ...], publishes: tuple[str, ...]
) -> None:
    reader, producer = scope_of("reader", pattern, None), scope_of("producer", pattern, None)
    assert tuple(each for each in OURS if reader.allows("read", each)) == reads
    assert tuple(each for each in OURS if producer.allows("publish", each)) == publishes
    for each in OURS:
        assert scope_of("channel", each, None).allows("publish", each)
        assert scope_of("admin", None, None).allows("publish", each)


def test_a_tenants_own_names_are_no_names_of_ours() -> None:
    scope = scope_of("producer", "tenant.>", None)
    for each in ("tenant.system.orders", "tenant.events.orders", "tenant.deadletter.x", "tenant.system"):
        assert scope.allows("publish", each)


def test_a_channel_token_has_its_channel_and_no_other() -> None:
    mine: set[object] = {("orders", None), ("orders", "billing"), ("orders", "audit")}
    assert allowed("channel", "orders") == dict.fromkeys(["read", "publish", "consume", "operate"], mine)


def test_a_consumer_token_has_its_consumer_and_no_other() -> None:
    mine: set[object] = {("orders", "billing")}
    assert allowed("consumer", "orders", "billing") == {"read": mine, "consume": mine}


def test_only_an_admin_replays() -> None:
    assert [kind for kind, verbs in VERBS.items() if verbs & {"replay", "admin"}] == ["admin"]


@pytest.mark.parametrize(
    ("kind", "channel", "consumer", "message"),
    [
        ("root", None, None, "scope 'root' is unknown; use one of admin"),
        ("admin", "orders", None, "covers every channel"),
        ("channel", None, None, "is for one channel"),
        ("consumer", "orders", None, "a consumer's name belongs to the scope 'consumer'"),
        ("consumer", None, "billing", "is for one channel"),
        ("channel", "orders", "billing", "a consumer's name belongs"),
        ("channel", "orders.*", None, "is not usable"),
        ("consumer", "orders", "a/b", "is not usable"),
        ("producer", "orders..eu", None, "is not usable"),
        ("reader", "../x", None, "is not usable"),
    ],
)
def test_a_scope_that_makes_no_sense_is_refused(
    kind: str, channel: str | None, consumer: str | None, message: str
) -> None:
    with pytest.raises(InvalidInput, match=message):
        scope_of(kind, channel, consumer)
