"""Backoff of loops: doubled from the first pause up to the longest, with a random share taken off."""

from __future__ import annotations

import pytest

from holdfast.model.backoff import backoff_seconds


def test_it_doubles_up_to_the_longest() -> None:
    found = [backoff_seconds(failures, 0.2, 15.0, jitter=0.0) for failures in (1, 2, 3, 7, 8, 10_000)]
    assert found == [0.2, 0.4, 0.8, 12.8, 15.0, 15.0]


@pytest.mark.parametrize("jitter", [0.5, 1.0])
def test_jitter_only_shortens_it(jitter: float) -> None:
    found = [backoff_seconds(3, 1.0, 60.0, jitter=jitter) for _ in range(200)]
    assert all(4.0 * (1 - jitter) <= each <= 4.0 for each in found)
    assert len(set(found)) > 100
