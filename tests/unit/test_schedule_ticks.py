"""The ticks of a schedule: as the page of the documentation says, also in the nights when clocks change."""

from __future__ import annotations

import re
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.model.errors import InvalidInput
from holdfast.model.upkeep import StateRecord
from holdfast.upkeep.schedules import GRACE, Content, Schedule, from_record, plan, to_fields
from holdfast.upkeep.timing import Timing, zone

PAGE = Path(__file__).parents[2] / "docs" / "schedules.md"
_ROW = re.compile(r"^\| `([^`]+)` \| ([\d-]+)[^|]* \| ([^|]+) \|", re.MULTILINE)
NOW = datetime(2026, 3, 28, 12, tzinfo=UTC)
BERLIN = "Europe/Berlin"
ZONES = (BERLIN, "America/New_York", "America/Santiago", "Africa/Casablanca", "Asia/Kolkata", "UTC")
CHANGES = ("2026-03-08", "2026-03-29", "2026-04-05", "2026-09-06", "2026-10-25", "2026-11-01", "2026-02-15")


def cases() -> list[tuple[str, str, str]]:
    """The nights of the page: an expression, the day, and what it says of the ticks until five o'clock."""
    return [(cron, day, said) for cron, day, said in _ROW.findall(PAGE.read_text())]


@pytest.mark.parametrize(("cron", "day", "said"), cases())
def test_the_nights_of_the_page_are_as_it_says(cron: str, day: str, said: str) -> None:
    local = zone(BERLIN)
    begin = datetime.fromisoformat(day).replace(tzinfo=local)
    timing = Timing.of(NOW, cron=cron, tz=BERLIN)
    found = []
    for tick in timing.after(begin.astimezone(UTC) - timedelta(seconds=1)):
        there = tick.astimezone(local)
        if (there.date(), there.hour < 5) != (begin.date(), True):
            break
        found.append(f"{there:%H:%M %Z}")
    assert found == ([] if "none" in said else re.findall(r"\d\d:\d\d CES?T", said))


def test_the_page_has_both_nights() -> None:
    assert {day for _, day, _ in cases()} == {"2026-03-29", "2026-10-25"}
    assert len(cases()) >= 8


def _field(draw: st.DrawFn, low: int, high: int) -> str:
    numbers = st.integers(low, high)
    way = draw(st.integers(0, 4))
    first, last = sorted((draw(numbers), draw(numbers)))
    return ("*", f"*/{draw(st.integers(1, 20))}", f"{first}", f"{first}-{last}", f"{first},{last}")[way]


@st.composite
def nights(draw: st.DrawFn) -> tuple[str, str, datetime]:
    """An expression, a zone, and a day around which clocks change somewhere."""
    cron = f"{_field(draw, 0, 59)} {_field(draw, 0, 5)} * * {draw(st.sampled_from(['*', '1-5', '0']))}"
    day = datetime.fromisoformat(draw(st.sampled_from(CHANGES))).replace(tzinfo=UTC) - timedelta(days=1)
    return cron, draw(st.sampled_from(ZONES)), day


@given(nights(), st.integers(0, 3 * 86_400))
def test_ticks_rise_and_are_the_same_from_wherever_one_looks(
    night: tuple[str, str, datetime], second: int
) -> None:
    cron, tz, day = night
    timing = Timing.of(day, cron=cron, tz=tz)
    ticks = list(islice(timing.after(day), 300))
    assert ticks == sorted(set(ticks))
    start = day + timedelta(seconds=second)
    later = [tick for tick in ticks if tick > start]
    if later:
        assert timing.next(start) == later[0]


@given(
    st.timedeltas(timedelta(seconds=1), timedelta(days=40)),
    st.timedeltas(timedelta(0), timedelta(days=4000)),
    st.integers(1, 30),
)
def test_the_latest_ticks_are_those_that_a_walk_finds(every: timedelta, ago: timedelta, count: int) -> None:
    timing = Timing.of(NOW, every=every)
    until = timing.anchor + ago
    places = range(max(1, ago // every - count + 1), ago // every + 1)
    assert timing.latest(timing.anchor, until, count) == [timing.anchor + n * every for n in places]


@given(st.text(max_size=40) | st.from_regex(r"[-*/,#LW0-9A-Z ]{1,40}", fullmatch=True), st.text(max_size=20))
def test_any_text_is_refused_in_words_or_ticks(cron: str, tz: str) -> None:
    for name in ("UTC", tz):
        found = []
        with suppress(InvalidInput):
            found = Timing.of(NOW, cron=cron, tz=name).upcoming(NOW, 1)
        assert all(tick > NOW for tick in found)


def schedule(next_: datetime | None = NOW, **changes: Any) -> Schedule:
    """One that ticks every ten minutes, and has done so for a day."""
    made: dict[str, Any] = {
        "timing": Timing.of(NOW - timedelta(days=1), every="10m"),
        "content": Content(),
        "missed": "once",
        "max_missed": 5,
    }
    made |= {"incarnation": "ab", "next": next_, "created_at": NOW}
    return Schedule("nightly", "orders", **made | changes)


@given(
    st.sampled_from(["skip", "once", "all"]),
    st.integers(1, 8),
    st.timedeltas(timedelta(0), timedelta(days=2)),
)
def test_a_plan_takes_ticks_in_order_and_counts_the_others(missed: Any, most: int, late: timedelta) -> None:
    one, now = schedule(missed=missed, max_missed=most), NOW + late
    found = plan(one, now)
    due = [NOW + n * timedelta(minutes=10) for n in range(late // timedelta(minutes=10) + 1)]
    in_time = [tick for tick in due if tick > now - GRACE]
    kept = {"skip": 0, "once": 1, "all": most}[missed]
    assert found.ticks == (due[: len(due) - len(in_time)][-kept:] if kept else []) + in_time
    assert found.skipped == len(due) - len(found.ticks)
    assert found.next == due[-1] + timedelta(minutes=10)


def test_jitter_spreads_schedules_and_keeps_their_ticks_in_order() -> None:
    timing = Timing.of(NOW, every="1h", jitter="59m")
    ticks = timing.upcoming(NOW, 50)
    late = {name: [timing.due(name, tick) - tick for tick in ticks] for name in ("a", "b")}
    assert late["a"] != late["b"]
    assert len(set(late["a"])) == len(ticks)
    assert max(late["a"]) > timedelta(minutes=45)
    assert min(late["a"]) < timedelta(minutes=15)
    dues = [timing.due("a", tick) for tick in ticks]
    assert dues == sorted(dues)


@given(st.binary(max_size=50), st.none() | st.text(max_size=5), st.integers(-100, 100))
def test_what_is_stored_is_read_as_it_was(data: bytes, key: str | None, priority: int) -> None:
    content = Content(data, "t", key, {"a": "ü"}, priority)
    for timing in (
        Timing.of(NOW, cron="0 3 * * *", tz=BERLIN, jitter="90s"),
        Timing.of(NOW, every=timedelta(seconds=1.5)),
    ):
        times = {"last": NOW, "error_at": NOW, "retry_at": NOW}
        counts = {"fired": 3, "skipped": 2, "failures": 1, "revision": 7}
        one = schedule(timing=timing, content=content, paused=priority > 0, error="no", **times, **counts)
        record = StateRecord("gbe.schedules.of.orders/nightly", to_fields(one), 7)
        assert from_record("gbe", record) == one
