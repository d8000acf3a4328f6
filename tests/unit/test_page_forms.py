"""What pages make of data, errors and forms. Pure."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markupsafe import Markup

from holdfast.deadletters.operation import Canary, Checkpoint, Operation, OperationOptions, Progress, Request
from holdfast.model.errors import InvalidInput
from holdfast.server.pages.audit import tone
from holdfast.server.pages.confirm import diff_lines
from holdfast.server.pages.formatting import SHOWN, payload, some, visible
from holdfast.server.pages.forms import FilterForm, FormFields, OperationForm, agreed_preview
from holdfast.server.pages.operations import operation_view

NOW = datetime(2030, 1, 31, 9, tzinfo=UTC)


def order(**fields: str) -> OperationForm:
    return OperationForm.of(FormFields(list(fields.items())))


def test_what_nobody_can_see_is_written_out() -> None:
    assert visible("a\u202eb\x00\u200b\n\tc") == "a\\u202eb\\u0000\\u200b\n\tc"
    assert visible("žluťoučký 漢字 🙂") == "žluťoučký 漢字 🙂"
    assert visible(Markup("<b>\u202e</b>")) == Markup("<b>\u202e</b>")


@given(st.binary(max_size=300))
def test_every_payload_has_a_text(data: bytes) -> None:
    shown = payload(data)
    assert shown.size == len(data)
    assert shown.form in ("JSON", "text", "bytes")


@pytest.mark.parametrize(
    ("data", "form", "text"),
    [
        (b'{"a":[1]}', "JSON", '{\n  "a": [\n    1\n  ]\n}'),
        (b"plain", "text", "plain"),
        (b"[" * 100_000, "text", "[" * SHOWN),
        (b"9" * 5000, "text", "9" * 5000),
        (b"\x00\xfeA", "bytes", "000000  00 fe 41" + " " * 41 + "··A"),
    ],
)
def test_a_payload_as_people_read_it(data: bytes, form: str, text: str) -> None:
    assert (payload(data).form, payload(data).text) == (form, text)


def test_a_large_payload_is_cut_and_says_so() -> None:
    data = b'"' + b"x" * 200_000 + b'"'
    assert payload(data).cut
    assert not payload(data, whole=True).cut
    assert len(payload(data, whole=True).text) == 200_002


def test_a_filter_survives_its_address_and_its_form() -> None:
    wanted = FilterForm.of(
        FormFields([("channel", " orders "), ("text", 'a&b="<'), ("since", "2030-01-31T09:00"), ("x", "y")])
    )
    assert wanted.given == {"channel": "orders", "text": 'a&b="<', "since": "2030-01-31T09:00"}
    assert wanted.query(after="t") == "channel=orders&text=a%26b%3D%22%3C&since=2030-01-31T09%3A00&after=t"
    assert FilterForm.of(FormFields(wanted.fields)) == wanted
    assert wanted.filter().where.since == NOW


def test_a_redrive_as_a_form_says_it() -> None:
    asked = order(act="redrive", channel="orders", rate="2.5", canary="5", share="80", patience="30s")
    canary = Canary(5, 0.8, timedelta(seconds=30))
    assert asked.request(everything=False).options == OperationOptions(rate=2.5, canary=canary)
    assert (
        order(act="redrive", channel="orders", rate="", canary="").request(everything=False).options
        == OperationOptions()
    )


@pytest.mark.parametrize("patch", ["{", "{}", "[]", "[1]", "[" * 100_000])
def test_a_patch_must_be_a_list_of_steps(patch: str) -> None:
    with pytest.raises(InvalidInput):
        order(act="patch", channel="orders", patch=patch).request(everything=False)


def test_what_was_agreed_to_is_what_was_shown() -> None:
    seen = agreed_preview(FormFields([("seen", NOW.isoformat()), ("count", "12"), ("exact", "yes")]))
    assert seen is not None
    assert (seen.count, seen.exact, seen.seen) == (12, True, (NOW,))
    assert agreed_preview(FormFields([])) is None
    with pytest.raises(InvalidInput):
        agreed_preview(FormFields([("seen", NOW.isoformat()), ("count", "inf")]))


def test_a_diff_loses_its_titles_and_keeps_its_tones() -> None:
    lines = diff_lines("--- as it is\n+++ patched\n@@ -1 +1 @@\n-a\n+b\n c")
    assert [(line.text, line.tone) for line in lines] == [
        ("@@ -1 +1 @@", "place"),
        ("-a", "removed"),
        ("+b", "added"),
        (" c", ""),
    ]


def test_how_many_in_words() -> None:
    assert [some(1), some(1_234), some(10_000, False)] == [
        "1 dead letter",
        "1,234 dead letters",
        "at least 10,000 dead letters",
    ]


@pytest.mark.parametrize(
    ("outcome", "colour"),
    [("asked", "calm"), ("done: 3 of 3 done", "good"), ("refused: no", "bad"), ("cancelled", "wait")],
)
def test_an_outcome_has_the_colour_of_its_first_word(outcome: str, colour: str) -> None:
    assert tone(outcome) == colour


def test_what_is_left_is_told_only_where_it_is_known() -> None:
    def at(**fields: object) -> float | None:
        operation = Operation(
            "id",
            Request("redrive", options=OperationOptions(canary=Canary(5))),
            "me",
            NOW,
            "running",
            Progress(looked_at=20, done=20, expected=100),
            started_at=NOW,
            **fields,  # type: ignore[arg-type]
        )
        return operation_view(operation, NOW + timedelta(seconds=10), operable=True).left

    assert at(checkpoint=Checkpoint(cleared=True)) == 40
    assert at(checkpoint=Checkpoint()) is None  # its canary decides first
