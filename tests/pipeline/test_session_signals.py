"""A signal that comes while Java starts waits until it has."""

from __future__ import annotations

import signal

import pytest

from holdfast.pipeline import session


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_waits_until_java_has_started(number: signal.Signals) -> None:
    heard: list[int] = []
    before = signal.signal(number, lambda number, _: heard.append(number))
    try:
        with session._undisturbed():
            signal.raise_signal(number)
            assert heard == []
        assert heard == [number]
    finally:
        signal.signal(number, before)
