"""Events: what a publisher passes, and what the codecs of the stores make of any bytes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hostile import BYTES, FIELDS, JSON, NASTY, REFUSED, TEXTS, TIMES, VALUES, attempt, fuzzed
from hypothesis import example, given
from hypothesis import strategies as st

from holdfast.backends.nats.wire import codec as nats_codec
from holdfast.backends.nats.wire.codec import rows
from holdfast.backends.nats.wire.parser import StoredMessage, parse_headers, stored
from holdfast.backends.redis import codec as redis_codec
from holdfast.backends.redis.codec import decode_page
from holdfast.model.errors import InvalidInput
from holdfast.model.event import MAX_DATA, MAX_TEXT, Event, check_event, is_common

WILD = st.one_of(TEXTS, st.integers(), BYTES, st.none())
MARKS = [(1, (0, 0))]


@fuzzed(2)
@given(
    data=st.one_of(BYTES, JSON, st.just(object()), st.just("\ud800")),
    name=WILD,
    source=WILD,
    kind=WILD,
    key=WILD,
    time=st.one_of(TIMES, st.datetimes(), st.just("2026-07-01")),
    headers=st.one_of(st.dictionaries(WILD, WILD, max_size=3), st.just([1]), st.just("x")),
)
def test_what_a_publisher_passes_is_an_event_for_every_store_or_refused(**given_fields: Any) -> None:
    event = attempt(Event, given_fields["data"])
    if event is REFUSED:
        return
    passed = Event(
        event.data,
        given_fields["name"] or "e",
        given_fields["source"] or "s",
        given_fields["kind"] or "t",
        given_fields["key"],
        given_fields["time"],
        given_fields["headers"],
    )
    checked = attempt(check_event, passed)
    if checked is REFUSED:
        return
    for text in (checked.id, checked.source, checked.type, checked.key or ""):
        assert len(text) <= MAX_TEXT
        assert "\0" not in text
        text.encode()
    assert is_common(checked.time)
    read = redis_codec.decode(b"1-1", _as_entry(checked))
    assert read == checked._replace(headers=dict(checked.headers))
    [*parts, message] = nats_codec.encode("orders", checked, nats_codec.Delivery(), 1 << 20)
    assert not parts
    assert nats_codec.decode(StoredMessage("orders", 1, "", message.headers, message.data), 0) == read


def _as_entry(event: Event) -> list[bytes]:
    """The fields of an event, as the script writes them."""
    name, source, kind, key, time, headers, _, data = redis_codec.encode(event)
    fields = {
        "id": name,
        "source": source,
        "type": kind,
        "key": str(key)[1:],
        "time": time,
        "headers": headers,
        "data": data,
    }
    present = {
        name: value for name, value in fields.items() if value or name in ("data",) or (name == "key" and key)
    }
    return [each if isinstance(each, bytes) else each.encode() for pair in present.items() for each in pair]


@pytest.mark.parametrize(
    "time",
    [
        datetime.min.replace(tzinfo=timezone(timedelta(hours=1))),
        datetime.max.replace(tzinfo=timezone(timedelta(hours=-1))),
    ],
)
def test_a_time_that_is_none_in_utc_is_refused(time: datetime) -> None:
    with pytest.raises(InvalidInput, match="years 1 to 9999"):
        check_event(Event(1, time=time))


@pytest.mark.parametrize("data", ["[" * 5_000, "9" * 5_000, '"\\ud800"', "\ufeff1", "NaN"])
def test_data_that_is_hardly_json_is_read_or_refused(data: str) -> None:
    attempt(Event(data.encode()).json)


@pytest.mark.parametrize(
    "data",
    [float("nan"), "\ud800", {"a": object()}, {1, 2}, [10**5_000]],
    ids=["nan", "surrogate", "object", "set", "huge"],
)
def test_a_value_that_is_no_json_is_refused(data: Any) -> None:
    with pytest.raises(InvalidInput, match="no JSON value"):
        Event(data)


def test_data_that_contains_itself_is_refused() -> None:
    circle: list[Any] = []
    circle.append(circle)
    deep: Any = 1
    for _ in range(100_000):
        deep = [deep]
    for data in (circle, deep):
        with pytest.raises(InvalidInput):
            Event(data)
    while isinstance(deep, list):
        deep = deep.pop()


def test_data_over_the_limit_is_refused() -> None:
    with pytest.raises(InvalidInput, match="limit"):
        check_event(Event(b"x" * (MAX_DATA + 1)))


ENTRIES = st.one_of(
    st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1)).map(lambda each: b"%d-%d" % each),
    st.just(b"0-1"),
)


@fuzzed(2)
@given(ENTRIES, st.dictionaries(FIELDS, VALUES, min_size=1, max_size=6))
@example(b"1-1", {b"time": b"0001-01-01T00:00:00+14:00"})
@example(b"1-1", {b"time": b"1500-01-01T00:00:00+00:00", b"data": b"1"})
def test_any_entry_of_a_stream_is_an_event(entry: bytes, fields: dict[bytes, bytes]) -> None:
    flat = [each for pair in fields.items() for each in pair]
    event = redis_codec.decode(entry, flat)
    assert isinstance(event.data, bytes)
    assert event.id
    assert event.time is not None
    assert is_common(event.time)
    assert all(isinstance(each, str) for pair in event.headers.items() for each in pair)
    columns = decode_page(MARKS, [(entry, flat)])
    assert (columns.ids[0], columns.sources[0], columns.types[0], columns.keys[0]) == event[1:5]
    assert (columns.data[0], dict(columns.headers[0])) == (event.data, dict(event.headers))
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=columns.times[0])
    assert moment == event.time, "a decode_page tells the same time"
    redis_codec.published_at(entry, flat)


HEADERS = [
    "ce-id",
    "ce-source",
    "ce-type",
    "ce-time",
    "ce-partitionkey",
    "Holdfast-Headers",
    "Holdfast-At",
    "Holdfast-Priority",
    "Holdfast-Parts",
    "Holdfast-Publish",
    "Nats-Msg-Id",
    "Nats-Batch-Id",
    "Nats-Batch-Sequence",
    "Status",
    "trace",
]
NUMBER = st.integers(1, 2**40)


@fuzzed(2)
@given(
    st.lists(
        st.tuples(
            st.one_of(st.sampled_from(HEADERS), TEXTS),
            st.one_of(TEXTS, st.sampled_from(["-5", "99999", "zz", "0001-01-01T00:00:00+14:00"])),
        ),
        max_size=5,
    ),
    BYTES,
    NUMBER,
)
def test_any_message_of_a_stream_is_an_event(pairs: list[tuple[str, str]], data: bytes, seq: int) -> None:
    lines = "".join(f"{name}: {value}\r\n" for name, value in pairs)
    server = (
        f"Nats-Stream: HOLDFAST\r\nNats-Subject: orders\r\nNats-Sequence: {seq}\r\n"
        "Nats-Time-Stamp: 2026-07-01T00:00:00.1Z\r\n"
    )
    raw = f"NATS/1.0\r\n{lines}{server}\r\n".encode("utf-8", "surrogatepass")
    message = stored((raw, data))
    assert (message.seq, message.subject) == (seq, "orders"), "the server speaks last"
    event = nats_codec.decode(message, lambda _: 1_000_000)
    assert event.id
    assert event.time is not None
    assert is_common(event.time)
    assert all(isinstance(each, str) for pair in event.headers.items() for each in pair)
    assert 0 <= nats_codec.part_count(message) < 10**18
    nats_codec.delivery(message)
    nats_codec.data_size(message)
    rows([(raw, data)])


@fuzzed()
@given(BYTES)
@example(b"NATS/1.0 \r\n\r\n")
@example(b"")
def test_any_headers_can_be_read(raw: bytes) -> None:
    assert all(isinstance(each, str) for pair in parse_headers(raw).items() for each in pair)


@fuzzed()
@given(
    st.one_of(
        BYTES,
        st.tuples(st.integers(0, 2**32 - 1), BYTES).map(lambda each: each[0].to_bytes(4, "big") + each[1]),
    )
)
@example(b"\xff\xff\xff\xffabc")
@example(b"\0\0\0\1[")
@example(b"\0\0\0\2[]x")
def test_parts_of_any_content_are_data(whole: bytes) -> None:
    data, headers = nats_codec.unpacked(whole)
    assert isinstance(data, bytes)
    assert all(isinstance(each, str) for pair in headers.items() for each in pair)


def test_parts_are_put_together_again() -> None:
    event = Event(b"x" * 1_040_000, "e", headers={"a": "b" * 16_000, "c": NASTY[-1]})
    [*parts, last] = nats_codec.encode("orders", event, nats_codec.Delivery(), 1 << 20)
    assert nats_codec.unpacked(b"".join(part.data for part in parts)) == (event.data, event.headers)
    numbered = last.headers | {"Nats-Batch-Id": "b", "Nats-Batch-Sequence": str(len(parts) + 2)}
    assert nats_codec.part_count(StoredMessage("orders", 9, "", numbered, b"")) == len(parts)
    assert nats_codec.part_count(StoredMessage("orders", 9, "", last.headers, b"")) == 0, (
        "nobody sent them along"
    )
