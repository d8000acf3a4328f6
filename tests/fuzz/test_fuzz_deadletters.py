"""Dead letters: ids, places in the list, filters and JSON Patches, from whoever asks."""

from __future__ import annotations

import base64
import json
import time
import zlib
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import orjson
import pytest
from hostile import BYTES, JSON, REFUSED, TEXTS, attempt, fuzzed
from hypothesis import example, given
from hypothesis import strategies as st

import holdfast
from holdfast.deadletters import DeadLetters, payloads
from holdfast.deadletters.items import Filter, ItemId, parse_item, parse_public
from holdfast.deadletters.operation import Operation, Request, check_request, fields_of, operation_of
from holdfast.deadletters.payloads import readable
from holdfast.model.deadletters import DeadFilter
from holdfast.model.errors import InvalidInput
from holdfast.model.event import MAX_DATA
from holdfast.model.upkeep import StateRecord
from holdfast.server.pages.forms import FormFields, OperationForm, agreed_preview
from kit import bury, claim_one, publish, subscribe

NOW = datetime(2026, 7, 1, tzinfo=UTC)
IDS = st.one_of(TEXTS, st.text("job:ingestream@0123abc._-", max_size=60))
STEP = st.fixed_dictionaries(
    {
        "op": st.one_of(st.sampled_from(["add", "remove", "replace", "move", "copy", "test"]), JSON),
        "path": st.one_of(st.sampled_from(["", "/", "/a", "/a/0", "/-", "/a~1b", "/~2"]), JSON),
    },
    optional={"value": JSON, "from": st.one_of(st.sampled_from(["", "/a"]), JSON)},
)


@pytest.fixture
async def graves(url: str) -> AsyncIterator[DeadLetters]:
    """Five dead letters on a store of each kind."""
    async with holdfast.connect(url) as bus:
        store = bus.partitions.all[0].backend
        await subscribe(store)
        for number in range(5):
            await publish(store, str(number))
            await bury(store, await claim_one(store))
        yield DeadLetters(bus)


@fuzzed()
@given(IDS)
def test_an_id_is_read_back_or_refused(text: str) -> None:
    item = attempt(parse_item, text)
    if item is not REFUSED:
        assert parse_item(str(item)) == item
    found = attempt(parse_public, text)
    if found is not REFUSED:
        assert attempt(parse_item, str(ItemId("job", found[0], "orders", "billing", found[1]))) is not REFUSED


def cursor(value: Any) -> str:
    return base64.urlsafe_b64encode(zlib.compress(orjson.dumps(value))).decode().rstrip("=")


PLACES = st.one_of(
    TEXTS,
    BYTES.map(lambda data: base64.urlsafe_b64encode(data).decode()),
    BYTES.map(lambda data: base64.urlsafe_b64encode(zlib.compress(data)).decode()),
    st.lists(
        st.one_of(
            st.none(), st.sampled_from(["1", "2026-07-01", "2026-07-01T00:00:00", NOW.isoformat(), "x"])
        ),
        max_size=4,
    ).map(lambda place: cursor({"job@0": place})),
)


@fuzzed(0.5, shrink=False)
@given(PLACES)
@example(cursor({"job@0": [None, "2026-07-01T00:00:00", "nobody"]}))
async def test_a_place_in_the_list_leads_on_or_is_refused(graves: DeadLetters, after: str) -> None:
    try:
        page = await graves.find(Filter(), after, 2)
    except InvalidInput as refusal:
        if "place" not in str(refusal) and "position" not in str(refusal):
            raise
    else:
        assert len(page.items) <= 2


@fuzzed()
@given(
    st.dictionaries(
        st.one_of(st.sampled_from([*DeadFilter.__slots__, "kinds"]), TEXTS.filter(str.isidentifier)),
        st.one_of(
            SCALAR := st.one_of(TEXTS, st.none(), st.integers(), st.datetimes(), st.just(NOW)),
            st.lists(SCALAR, max_size=2),
        ),
        max_size=4,
    )
)
@example({"kinds": NOW})
@example({"channel": ["orders"]})
def test_a_filter_is_read_back_or_refused(words: dict[str, Any]) -> None:
    found = attempt(Filter.of, **words)
    if found is not REFUSED:
        assert Filter.from_json(json.loads(json.dumps(found.to_json()))) == found
        operation = Operation("o-1", Request("purge", found, all=True), "me", NOW)
        assert operation_of(StateRecord("gbe.state.operations.o-1", fields_of(operation), 0)) == operation


@fuzzed()
@given(st.lists(st.one_of(STEP, JSON), max_size=4), st.one_of(JSON, st.just({"a": [1, {"b": 2}]})))
def test_a_patch_fits_or_is_refused(patch: Any, document: Any) -> None:
    try:
        data = json.dumps(document).encode()
    except (ValueError, RecursionError):
        data = b"no JSON"
    valid = attempt(payloads.check_patch, patch)
    changed = attempt(payloads.change, "job:1", data, patch) if valid is not REFUSED else REFUSED
    if changed is not REFUSED:
        patched = payloads.apply("job:1", data, patch)
        assert len(patched) <= MAX_DATA
        assert json.dumps(json.loads(patched)) == json.dumps(changed.after)
        asked = Request("patch", None, ("job:orders:billing:1",), all=False)
        attempt(check_request, asked, NOW)


@pytest.mark.parametrize("depth", [100, 300, 480, 700, 950, 5_000])
def test_data_of_any_depth_is_patched_or_refused(depth: int) -> None:
    step = {"op": "add", "path": "", "value": 1}
    for opened, closed in ((b"[", b"]"), (b'{"a":', b"}")):
        attempt(payloads.change, "job:1", opened * depth + b"1" + closed * depth, [step])


def test_what_a_patch_changes_in_large_data_is_shown_in_a_moment() -> None:
    numbers = [number * 7919 % 1_000 for number in range(200_000)]
    began = time.process_time()
    change = payloads.change(
        "job:1", json.dumps(numbers).encode(), [{"op": "add", "path": "/5", "value": -1}]
    )
    assert "+  -1," in change.diff.splitlines()
    assert len(change.diff.splitlines()) < 20
    swapped = payloads.change(
        "job:1", json.dumps(numbers).encode(), [{"op": "replace", "path": "", "value": numbers[::-1]}]
    )
    assert swapped.diff
    assert time.process_time() - began < 10


def test_a_patch_that_doubles_its_document_ends_at_the_limit() -> None:
    grow = [{"op": "copy", "from": "", "path": "/-"}] * 90
    with pytest.raises(InvalidInput, match="the limit is"):
        payloads.apply("job:1", b'["%b"]' % (b"x" * 1_000), grow)


@fuzzed()
@given(BYTES)
def test_data_is_shown_as_json_that_stays_the_same_or_in_base64(data: bytes) -> None:
    shown = json.loads(json.dumps(readable("data", data)))
    if "data_base64" in shown:
        assert base64.b64decode(shown["data_base64"]) == data
    else:
        assert shown["data"] == json.loads(data)


FORM = st.lists(
    st.tuples(
        st.sampled_from(
            [
                "act",
                "item",
                "rate",
                "canary",
                "share",
                "patience",
                "patch",
                "since",
                "letters",
                "seen",
                "count",
            ]
        ),
        st.one_of(
            TEXTS,
            st.sampled_from(
                ["purge", "patch", "redrive", "5", "inf", "1e400", "[]", '[{"op":1}]', "2026-07-01"]
            ),
        ),
    ),
    max_size=6,
)


@fuzzed()
@given(FORM)
@example([("act", "patch"), ("patch", "[" * 5_000)])
@example([("act", "redrive"), ("canary", "9" * 300)])
def test_a_form_is_a_request_or_refused(fields: list[tuple[str, str]]) -> None:
    given_fields = FormFields(fields)
    order = attempt(OperationForm.of, given_fields)
    if order is not REFUSED:
        asked = attempt(order.request, everything=True)
        if asked is not REFUSED:
            attempt(check_request, asked, NOW)
    attempt(agreed_preview, given_fields)
