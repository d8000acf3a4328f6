"""Events: what is kept, what is refused, and ids that sort."""

from __future__ import annotations

import json
import uuid
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.model.errors import InvalidInput, TooLarge
from holdfast.model.event import MAX_DATA, MAX_TEXT, Event, check_event, encode_data, new_id, new_ids

values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner),
    max_leaves=20,
)
texts = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]), min_size=1, max_size=MAX_TEXT)


@given(values)
def test_a_json_value_comes_back(value: Any) -> None:
    assert Event(value).json() == value


@given(st.binary())
def test_bytes_are_kept_as_they_are(data: bytes) -> None:
    assert Event(data).data == Event(bytearray(data)).data == Event(memoryview(data)).data == data


@given(st.binary(max_size=200))
def test_reading_json_answers_or_refuses(data: bytes) -> None:
    event = Event(data, "e-1")
    try:
        value = event.json()
    except InvalidInput as error:
        named = "'e-1'" in str(error)
    else:
        named = value == json.loads(data) or value != value
    assert named


@pytest.mark.parametrize("data", [b"[" * 200_000 + b"]" * 200_000, b"9" * 5000, b"", b"\xff", b"{"])
def test_hostile_json_is_refused_by_a_typed_error(data: bytes) -> None:
    with pytest.raises(InvalidInput, match="'evil'"):
        Event(data, "evil").json()


@pytest.mark.parametrize(
    "data",
    [object(), {1}, float("nan"), {"a": float("-inf")}, 10**5000, "\ud800", {b"k": 1}],
    ids=lambda data: type(data).__name__,
)
def test_what_is_no_json_is_refused(data: Any) -> None:
    with pytest.raises(InvalidInput, match=type(data).__name__):
        encode_data(data)


def test_deep_values_are_refused() -> None:
    deep: Any = []
    for _ in range(100_000):
        deep = [deep]
    try:
        with pytest.raises(InvalidInput, match="list"):
            encode_data(deep)
    finally:
        while deep:
            [deep] = deep  # taken apart step by step: the interpreter itself would fall into it


def test_the_defaults() -> None:
    event = Event()
    assert (event.data, event.id, event.source, event.type) == (b"null", "", "default", "event")
    assert (event.key, event.time, dict(event.headers)) == (None, None, {})


def test_an_event_does_not_change() -> None:
    with pytest.raises(AttributeError):
        Event(1, "a").id = "b"  # type: ignore[misc]


@given(
    st.builds(
        Event,
        st.binary(max_size=100),
        texts | st.just(""),
        texts,
        texts,
        texts | st.none() | st.just(""),
        st.datetimes(timezones=st.just(UTC)) | st.none(),
        st.dictionaries(texts.map(lambda t: t[:50]), texts.map(lambda t: t[:200]), max_size=30),
    )
)
def test_an_ordinary_event_passes_unchanged(event: Event) -> None:
    assert check_event(event) is event


@given(st.text(), st.text(), st.text(), st.text(), st.dictionaries(st.text(), st.text()))
def test_a_checked_event_can_be_carried(
    event_id: str, source: str, kind: str, key: str, headers: dict[str, str]
) -> None:
    event = Event(b"", event_id, source, kind, key, None, headers)
    try:
        check_event(event)
    except InvalidInput:
        return
    for text in (event_id, source, kind, key, *headers, *headers.values()):
        assert "\x00" not in text
        assert text.encode().decode() == text


@pytest.mark.parametrize("field", ["id", "source", "type", "key"])
@pytest.mark.parametrize("text", ["a\x00", "a\r\n", "\x7f", "\ud800"])
def test_texts_that_some_backend_cannot_carry_are_named(field: str, text: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        check_event(Event(b"", **{field: text}))
    assert field in str(caught.value)
    assert repr(text) in str(caught.value)


@pytest.mark.parametrize("field", ["id", "source", "type", "key"])
def test_texts_have_a_limit(field: str) -> None:
    check_event(Event(b"", **{field: "x" * MAX_TEXT}))
    with pytest.raises(TooLarge, match=str(MAX_TEXT + 1)):
        check_event(Event(b"", **{field: "x" * (MAX_TEXT + 1)}))


def test_data_has_a_limit() -> None:
    check_event(Event(b"x" * MAX_DATA))
    with pytest.raises(TooLarge, match=str(MAX_DATA + 1)):
        check_event(Event(b"x" * (MAX_DATA + 1)))


def test_a_time_without_a_zone_is_refused() -> None:
    with pytest.raises(InvalidInput, match="2024-05-06"):
        check_event(Event(b"", time=datetime(2024, 5, 6)))  # noqa: DTZ001 - that is the point


def test_ids_are_uuids_of_version_7_that_sort_by_time(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    for moment in range(5):
        monkeypatch.setattr("time.time_ns", lambda moment=moment: (1_700_000_000_000 + moment) * 1_000_000)
        made.append(new_id())
    assert made == sorted(made)
    for text in made:
        parsed = uuid.UUID(text)
        assert (parsed.version, parsed.variant, str(parsed)) == (7, uuid.RFC_4122, text)
    assert uuid.UUID(made[0]).int >> 80 == 1_700_000_000_000


def test_ids_of_one_call_rise_and_do_not_repeat() -> None:
    made = list(new_ids(20_000))
    assert made == sorted(set(made))
    assert {uuid.UUID(text).version for text in made} == {7}
    assert list(new_ids(0)) == []
