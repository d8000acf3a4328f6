"""How much of what is there makes a batch, and how it is shared out among tasks."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from holdfast.model.log import Cut
from holdfast.pipeline.offsets import ChannelPartition, Range
from holdfast.pipeline.slices import BATCH_BYTES, BATCH_ROWS, Slice, cut_slices, end, pack, quotas, reach

SPOT, OTHER = ChannelPartition(0, "orders"), ChannelPartition(1, "orders")
PLENTY = 1 << 40


def cuts(*sizes: int, size: int = 1) -> list[Cut]:
    """Slices of so many rows, each row of `size` bytes, that end at 1, 2, 3, …"""
    return [Cut(str(place), rows, rows * size) for place, rows in enumerate(sizes, 1)]


def part(rows: int, spot: ChannelPartition = SPOT, size: int = 1) -> Slice:
    return Slice(spot, None, "1", rows, rows * size)


def test_what_fits_is_taken_whole() -> None:
    assert quotas([cuts(10, 5), cuts(1), []], 16, 16) == [15, 1, 0]


def test_a_busy_channel_leaves_the_others_their_share() -> None:
    assert quotas([cuts(1000), cuts(10), cuts(500)], 110, PLENTY) == [50, 10, 50]


def test_a_batch_keeps_to_its_bytes() -> None:
    assert quotas([cuts(100, size=100), cuts(100, size=1)], 1000, 1010) == [10, 10]
    assert quotas([[Cut("1", 10, 1000), Cut("2", 1000, 1000)]], 5000, 500) == [5], "the heavy ones come first"


def test_where_there_are_more_channels_than_rows_some_wait() -> None:
    assert quotas([cuts(9), [], cuts(9), cuts(9)], 2, PLENTY) == [1, 0, 1, 0]
    assert quotas([cuts(9, size=10), cuts(9, size=10)], 100, 15) == [1, 0]


def test_even_the_largest_event_is_read_some_time() -> None:
    assert quotas([cuts(3, size=1 << 30), cuts(1)], 5, 5) == [1, 0]
    assert quotas([], 5, 5) == []


def weight(queue: list[Cut], rows: int) -> int:
    each = [cut.bytes // cut.rows for cut in queue for _ in range(cut.rows)]
    return sum(each[:rows])


queues = st.lists(
    st.lists(st.builds(lambda rows, size: Cut("", rows, rows * size), st.integers(1, 9), st.integers(0, 9))),
    max_size=6,
)


@given(queues, st.integers(1, 60), st.integers(1, 200))
def test_a_batch_is_fair_and_full_and_not_too_large(found: list[list[Cut]], rows: int, size: int) -> None:
    taken = quotas(found, rows, size)
    there = [sum(cut.rows for cut in queue) for queue in found]
    assert all(mine <= most for mine, most in zip(taken, there, strict=True))
    assert sum(taken) >= min(1, sum(there))
    total = sum(weight(queue, mine) for queue, mine in zip(found, taken, strict=True))
    assert sum(taken) == 1 or (sum(taken) <= rows and total <= size)
    cut_short = [mine for mine, most in zip(taken, there, strict=True) if mine < most]
    assert max(taken, default=0) <= min(cut_short, default=rows) + 1


def test_looking_far_is_for_few_channels() -> None:
    assert reach(500_000, 1) == reach(500_000, 8) == 500_000
    assert reach(500_000, 1000) == 10_000
    assert reach(10, 1000) == 10


def test_a_quota_ends_at_a_cut() -> None:
    assert end(cuts(2, 2, 2), 4) == "2"
    assert end(cuts(2, 2, 2), 5) == "2"
    assert end(cuts(3, 2), 2) == "1"


def test_slices_join_without_a_gap() -> None:
    made = cut_slices(Range(SPOT, "0", "9"), [Cut("4", 10, 20), Cut("9", 5, 10)])
    assert made == [Slice(SPOT, "0", "4", 10, 20), Slice(SPOT, "4", "9", 5, 10)]
    assert cut_slices(Range(SPOT, "0", "9"), []) == []


def test_small_slices_share_a_task() -> None:
    assert [len(group) for group in pack([part(4), part(4), part(4), part(20), part(1)], 8)] == [2, 1, 1, 1]


def test_a_task_stays_on_one_store() -> None:
    assert pack([part(1), part(1, OTHER)], 100) == [(part(1),), (part(1, OTHER),)]
    assert pack([], 100) == []


def test_a_page_fits_into_memory() -> None:
    assert part(100_000).page == BATCH_ROWS
    assert part(100, size=1 << 20).page == BATCH_BYTES >> 20
    assert part(100, size=1 << 30).page == 1
    assert part(100, size=0).page == BATCH_ROWS
