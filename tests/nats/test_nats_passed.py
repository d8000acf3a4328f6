"""Events that left before their turn, many in a row: whoever takes up the log passes them."""

from __future__ import annotations

import pytest

from holdfast.backends.nats import NatsBackend
from holdfast.backends.nats.state import take_up
from holdfast.model.states import State
from kit import CHANNEL, CONSUMER, MINUTE, publish, states, step, subscribe


async def cancel(backend: NatsBackend, names: str) -> None:
    for name in names:
        assert await backend.leases.cancel(CHANNEL, "default", name, None) == 1


async def test_what_expires_behind_them_is_buried(
    backend: NatsBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(take_up, "PAGE", 2)
    await subscribe(backend, expires_after="10m")
    await publish(backend, *"abcd")
    await cancel(backend, "abc")
    await step(backend)
    await backend.advance(11 * MINUTE)
    for _ in range(3):
        await step(backend)
    assert await states(backend) == {State.CANCELLED: 3, State.DEAD: 1}


async def test_what_waits_behind_them_is_cancelled(
    backend: NatsBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(take_up, "_MOST_PASSED", 2)
    await subscribe(backend)
    await publish(backend, *"abcd")
    await cancel(backend, "abc")
    assert await backend.leases.cancel_waiting(CHANNEL, CONSUMER, 1) == 1
    assert await states(backend) == {State.CANCELLED: 4}
    assert await backend.leases.cancel_waiting(CHANNEL, CONSUMER, 1) == 0
