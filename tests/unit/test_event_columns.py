"""Batches: events by column, checked as each event would be, and made only for those who look at them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from holdfast.bus.publish import prepared
from holdfast.model.errors import InvalidInput, TooLarge
from holdfast.model.event import MAX_DATA, Event, EventColumns, check_types

WHOLE = Event(b"1", "a", "tester", "made", "k", datetime(2024, 5, 6, tzinfo=UTC), {"trace": "t"})
PLAIN = Event(b"2")


def test_it_is_the_events_it_was_made_of() -> None:
    batch = EventColumns.of([WHOLE, PLAIN])
    assert list(batch) == [WHOLE, PLAIN]
    assert (len(batch), batch[1], batch[:1]) == (2, PLAIN, [WHOLE])
    assert all(type(event) is Event for event in batch)
    assert (batch.data, batch.ids) == ((b"1", b"2"), ("a", ""))
    assert EventColumns.of(batch) is batch


def test_only_events_without_an_id_get_one_and_keep_it() -> None:
    named = prepared("orders", [WHOLE, PLAIN, PLAIN], None, 0)
    assert named[0] == WHOLE
    assert named[1][2:] == PLAIN[2:]
    assert len({event.id for event in named}) == 3
    assert prepared("orders", named, None, 0)[1:] == named[1:]


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"data": bytes(MAX_DATA + 1)}, TooLarge),
        ({"id": "a\0"}, InvalidInput),
        ({"source": ""}, InvalidInput),
        ({"type": "a\n"}, InvalidInput),
        ({"key": "\ud800"}, InvalidInput),
        ({"time": datetime(2024, 5, 6)}, InvalidInput),  # noqa: DTZ001 - that is what is wrong with it
        ({"headers": {"trace": "\0"}}, InvalidInput),
    ],
)
def test_one_wrong_event_among_plain_ones_is_found(wrong: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        prepared("orders", [PLAIN, Event(**{"data": b"", **wrong}), PLAIN], None, 0)


@pytest.mark.parametrize("events", [[PLAIN, {"n": 1}], [("a",)], {"n": 1}])
def test_what_is_no_event_is_refused_by_its_type(events: Any) -> None:
    with pytest.raises(InvalidInput, match=r"a (dict|tuple|str) is no event; pass holdfast.Event"):
        check_types(events)
