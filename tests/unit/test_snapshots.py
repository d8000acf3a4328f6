"""What the pages make of figures: rates, sparklines, the flow, what needs attention, and words."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest

from holdfast.model.states import State
from holdfast.server.pages import formatting
from holdfast.server.pages.formatting import sparkline
from holdfast.server.pages.home import attention, channel_rows, flow, overview
from holdfast.server.pages.snapshot import (
    ChannelSnapshot,
    Snapshot,
    SnapshotHistory,
    StreamSnapshot,
    WorkerSnapshot,
)

NOW = datetime(2026, 11, 15, 12, tzinfo=UTC)
BILLING = ("orders", "billing")


def look(second: float, *, published: int = 0, ready: int = 0, dead: int = 0, lag: int = 0) -> Snapshot:
    """One look at a system with one channel, one worker consumer and an archiver."""
    return Snapshot(
        taken=second,
        now=NOW,
        channels={"orders": ChannelSnapshot(events=500, published=published)},
        workers={BILLING: WorkerSnapshot(Counter({State.READY: ready, State.DEAD: dead}))},
        streams={("orders", "archiver"): StreamSnapshot(lag, NOW - timedelta(hours=2) if lag else None)},
    )


def watched(*looks: Snapshot) -> SnapshotHistory:
    history = SnapshotHistory()
    for each in looks:
        history.add(each)
    return history


def test_rates_are_per_second_between_two_looks() -> None:
    history = watched(look(0), look(2, published=100, ready=20, dead=10))
    assert history.series("published", "orders") == [50]
    assert history.series("done", *BILLING) == [35], "what came, less what waits and what died"


def test_what_waited_before_counts_as_done_when_it_is_gone() -> None:
    history = watched(look(0, ready=80), look(2, ready=20))
    assert history.series("done", *BILLING) == [30]


def test_a_requeue_is_no_negative_rate() -> None:
    history = watched(look(0), look(2, ready=50))
    assert history.series("done", *BILLING) == [0]


def test_a_series_that_began_later_is_added_from_its_beginning() -> None:
    history = watched(look(0), look(1, published=1), look(2, published=2))
    late = look(3, published=3)
    late.channels["emails"] = ChannelSnapshot(published=4)
    history.add(late)
    assert history.total("published") == [1, 2, 7]


def test_only_the_last_minutes_are_kept() -> None:
    history = SnapshotHistory(kept=3)
    for second in range(10):
        history.add(look(second, published=second))
    assert history.series("published", "orders") == [7, 8, 9]


def test_a_sparkline_runs_from_left_to_right_and_from_zero_to_the_largest() -> None:
    drawn = sparkline([0, 5, 10], width=100, height=13)
    assert drawn is not None
    assert drawn.line == "0.0,11.5 50.0,6.5 100.0,1.5"
    assert drawn.top == 10


@pytest.mark.parametrize("values", [[], [1.0]])
def test_there_is_no_line_through_less_than_two_points(values: list[float]) -> None:
    assert sparkline(values) is None


def test_a_flat_line_of_zeros_is_drawn_at_the_bottom() -> None:
    drawn = sparkline([0, 0], height=28)
    assert drawn is not None
    assert drawn.line == "0.0,26.5 120.0,26.5"


def test_the_flow_moves_only_where_something_moves() -> None:
    still = flow(watched(look(0), look(2)), {"archiver"}, {"ingest"})
    assert not any(edge.speed for edge in still.edges)
    busy = flow(watched(look(0), look(2, published=100)), {"archiver"}, {"ingest"})
    assert sum(bool(edge.speed) for edge in busy.edges) == 5, "to the log, the workers, done and the archive"


def test_the_flow_says_in_words_what_it_shows() -> None:
    said = flow(watched(look(0), look(2, dead=3)), {"archiver"}, {"ingest"}).words
    assert "Dead letters: 3" in said
    assert "Ingest: not configured" in " ".join(said.split())


def test_what_needs_attention_is_named_and_what_is_well_is_not() -> None:
    assert list(attention(look(0), [])) == []
    told = [each.title for each in attention(look(0, dead=7, lag=20), [])]
    assert told == ["7 dead letters", "archiver is late"]


def test_a_store_that_is_away_comes_first() -> None:
    figures = look(0, dead=7)
    figures.unreachable.append("store 1: connection refused")
    assert next(attention(figures, [])).title == "A store does not answer"


def test_a_page_can_be_made_before_the_first_look() -> None:
    room = overview(SnapshotHistory(), [], {"archiver"}, {"ingest"})
    assert (room.published, room.waiting, room.dead, room.channels) == (0, 0, 0, [])


def test_a_channel_shows_what_waits_and_what_died_on_it() -> None:
    (row,) = channel_rows(watched(look(0, ready=4, dead=2)))
    assert (row.name, row.waiting, row.dead, row.events) == ("orders", 4, 2, 500)


@pytest.mark.parametrize(
    ("value", "said"),
    [(0, "0"), (1234, "1,234"), (9_999, "9,999"), (12_345, "12.3k"), (2_500_000, "2.5M"), (3.2e9, "3.2G")],
)
def test_large_counts_are_short(value: float, said: str) -> None:
    assert formatting.count(value) == said


@pytest.mark.parametrize(
    ("value", "said"), [(0, "0"), (0.25, "0.2"), (9.9, "9.9"), (10.4, "10"), (5e4, "50.0k")]
)
def test_small_rates_have_a_decimal(value: float, said: str) -> None:
    assert formatting.rate(value) == said


@pytest.mark.parametrize(
    ("seconds", "said"), [(0.2, "0 s"), (59, "59 s"), (61, "1 min"), (7_200, "2 h"), (200_000, "2 d")]
)
def test_a_span_is_told_in_its_largest_unit(seconds: float, said: str) -> None:
    assert formatting.span(seconds) == said


def test_sizes_are_told_in_powers_of_two() -> None:
    assert [formatting.size(each) for each in (10, 2048, 5 * 2**20)] == ["10 B", "2.0 KiB", "5.0 MiB"]
