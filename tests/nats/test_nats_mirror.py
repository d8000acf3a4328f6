"""The mirror: calls of one process share it, and one reads on while another one decides."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from holdfast.backends.nats import NatsBackend
from holdfast.backends.nats.state.take_up import TakeUp
from holdfast.model.states import State
from kit import MINUTE, claim, ids, publish, states, subscribe

pytestmark = pytest.mark.concurrency


def once_after(
    monkeypatch: pytest.MonkeyPatch, owner: type, name: str, of: object, act: Callable[[], Awaitable[Any]]
) -> list[int]:
    """Act once, right after that method of one object has done its work; then the list is empty."""
    acts, method = [1], getattr(owner, name)

    async def slowly(self: object, *given: Any, **options: Any) -> Any:
        found = await method(self, *given, **options)
        if self is of and acts:
            acts.pop()
            await act()
        return found

    monkeypatch.setattr(owner, name, slowly)
    return acts


async def test_a_claim_is_about_the_frontier_for_which_it_has_read_the_log(
    backend: NatsBackend, other: NatsBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another call of its process may learn of a newer one before it commits."""
    await subscribe(backend)
    await publish(backend, *"abcdef")
    await publish(backend, "later", at=await backend.now() + 60 * MINUTE)

    async def claim_first() -> None:
        assert ids(await claim(backend, 3)) == ["a", "b", "c"]
        await other._store.mirror.sync("1")

    acts = once_after(monkeypatch, TakeUp, "marked", other.leases._take_up, claim_first)
    assert ids(await claim(other)) == ["d", "e", "f"]
    assert acts == []
    assert await states(backend) == {State.LEASED: 6, State.SCHEDULED: 1}
