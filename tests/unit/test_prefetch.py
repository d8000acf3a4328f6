"""Prefetch: many while handlers are quick, few while they are slow."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from holdfast.bus.worker import MAX_PREFETCH, Prefetch


def test_it_begins_with_what_the_handlers_can_take() -> None:
    assert Prefetch(10).size == 10
    assert Prefetch(5 * MAX_PREFETCH).size == MAX_PREFETCH


def test_it_grows_while_batches_are_gone_at_once() -> None:
    prefetch, sizes = Prefetch(10), []
    for _ in range(12):
        prefetch.learn(prefetch.size, 0.01)
        sizes.append(prefetch.size)
    assert sizes == sorted(sizes)
    assert sizes[0] > 10
    assert sizes[-1] == MAX_PREFETCH


def test_it_shrinks_while_batches_last_long_but_never_below_the_handlers() -> None:
    prefetch = Prefetch(10)
    for _ in range(12):
        prefetch.learn(prefetch.size, 0.01)
    sizes = []
    for _ in range(12):
        prefetch.learn(prefetch.size, 20.0)
        sizes.append(prefetch.size)
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] < MAX_PREFETCH
    assert sizes[-1] == 10


def test_it_leases_a_quarter_of_a_second_ahead() -> None:
    prefetch = Prefetch(10)
    prefetch.learn(200, 1.0)
    assert prefetch.size == 50


def test_one_quick_batch_does_not_lease_the_whole_backlog() -> None:
    prefetch = Prefetch(2)
    prefetch.learn(2, 0.0001)
    assert prefetch.size == 16


@given(st.integers(1, 100), st.lists(st.tuples(st.integers(0, 2000), st.floats(0, 10)), max_size=50))
def test_a_fixed_size_stays_fixed(size: int, batches: list[tuple[int, float]]) -> None:
    prefetch = Prefetch(4, fixed=size)
    for jobs, seconds in batches:
        prefetch.learn(jobs, seconds)
        assert prefetch.size == size


@given(st.integers(1, 3000), st.lists(st.tuples(st.integers(0, 2000), st.floats(0, 10)), max_size=50))
def test_it_stays_within_its_bounds(concurrency: int, batches: list[tuple[int, float]]) -> None:
    prefetch = Prefetch(concurrency)
    for jobs, seconds in batches:
        prefetch.learn(jobs, seconds)
        assert min(concurrency, MAX_PREFETCH) <= prefetch.size <= MAX_PREFETCH
