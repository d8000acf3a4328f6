"""The options of the data source."""

from __future__ import annotations

import pickle
from datetime import UTC, datetime

import pytest

from holdfast.model.errors import InvalidInput
from holdfast.pipeline.options import Options, Position

URL = "redis://127.0.0.1:6379/0"
POSITION = "0001-00000000000000a1-0000000000000002"


@pytest.fixture(autouse=True)
def _no_store_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOLDFAST_URL", raising=False)
    monkeypatch.delenv("DATABASE_URL", raising=False)


def options(**given: str) -> Options:
    return Options.of({"url": URL, "channel": "orders"} | given)


def test_what_is_not_given_has_a_default() -> None:
    assert options() == Options((URL,), ("orders",))


def test_all_of_them_together() -> None:
    found = options(
        channel=" orders, gbe.events.> ,audit.*",
        consumer="archiver",
        startingPosition="latest",
        endingPosition=POSITION,
        maxRowsPerBatch="7",
        maxBytesPerBatch="8",
        rowsPerPartition="9",
        minPartitions="10",
        failOnDataLoss="FALSE",
    )
    channels = ("orders", "gbe.events.>", "audit.*")
    assert found == Options((URL,), channels, "archiver", "latest", Position(POSITION), 7, 8, 9, 10, False)


def test_names_come_in_any_case() -> None:
    assert Options.of({"URL": URL, "CHANNEL": "orders", "maxrowsperbatch": "3"}).max_rows == 3


def test_a_comma_before_a_scheme_separates_stores() -> None:
    assert options(url=f"{URL}, postgresql://a,b/x").urls == (URL, "postgresql://a,b/x")


def test_the_driver_resolves_the_environment_for_everybody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_URL", URL)
    resolved = Options.of({"channel": "orders"})
    monkeypatch.delenv("HOLDFAST_URL")
    assert pickle.loads(pickle.dumps(resolved)).urls == (URL,)  # noqa: S301 - our own
    assert Options.of({"channel": "orders"}).urls == ()


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("earliest", "earliest"),
        ("2026-07-01T12:00:00Z", datetime(2026, 7, 1, 12, tzinfo=UTC)),
        ("2026-07-01T14:00:00+02:00", datetime(2026, 7, 1, 12, tzinfo=UTC)),
        (POSITION, Position(POSITION)),
    ],
)
def test_a_place_is_a_word_a_time_or_a_position(text: str, place: object) -> None:
    assert options(startingPosition=text).start == place


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"chanel": "x"}, r"unknown option 'chanel'; the options are url, channel, consumer,"),
        ({"path": "x"}, r"unknown option 'path'"),
        ({"channel": " , "}, r"option channel is missing; name a channel or a pattern"),
        ({"channel": "Orders"}, r"channel name 'Orders' is not usable: write lower-case"),
        ({"channel": "a.>.b"}, r"pattern 'a.>.b' is not usable at '>'"),
        ({"consumer": "a b"}, r"consumer name 'a b' is not usable"),
        (
            {"startingPosition": "yesterday"},
            r"startingPosition 'yesterday' is not understood; write",
        ),
        ({"endingPosition": "2026-07-01"}, r"endingPosition '2026-07-01' has no zone; add one"),
        ({"maxRowsPerBatch": "0"}, r"maxRowsPerBatch '0' is not a count; write a whole number from 1 on"),
        ({"maxBytesPerBatch": "10 MB"}, r"maxBytesPerBatch '10 MB' is not a count"),
        ({"minPartitions": "²"}, r"minPartitions '²' is not a count"),
        ({"failOnDataLoss": "no"}, r"failOnDataLoss 'no' is neither true nor false"),
        ({"url": f"{URL},{URL}"}, r"the same store is listed twice"),
        (
            {"url": f"{URL},redis://b:6379/0", "startingPosition": POSITION},
            r"a position belongs to one store, and url lists 2; give a time instead",
        ),
        (
            {"consumer": "archiver", "startingPosition": POSITION},
            r"cannot be combined with consumer 'archiver', which starts at its cursor",
        ),
    ],
)
def test_an_error_says_what_is_wrong_and_what_to_do(given: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        options(**given)
