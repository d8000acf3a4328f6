"""Requeues on NATS: of an event that still waits in the log, behind many others."""

from __future__ import annotations

import pytest

from holdfast.backends.nats import NatsBackend, leases
from holdfast.backends.nats.state import take_up
from holdfast.model.states import State
from kit import CHANNEL, CONSUMER, claim, ids, publish, record, states, subscribe


@pytest.mark.parametrize("last", [True, False], ids=["the last one", "none"])
async def test_a_requeue_far_behind_the_frontier_of_an_ordered_consumer(
    backend: NatsBackend, last: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever stands before it becomes jobs, in several steps, and none of these is a lost race."""
    await subscribe(backend, ordered=True)
    await publish(backend, *"abcdef")
    waiting = (await record(backend, "f")).id if last else "999999999999999999"
    monkeypatch.setattr(take_up, "PAGE", 1)
    monkeypatch.setattr(leases, "TRIES", 3)
    assert await backend.leases.requeue(CHANNEL, CONSUMER, waiting) is last
    assert await states(backend) == {State.READY: 6}
    assert bool(backend._store.mirror.queues.jobs) is last, "for none nothing becomes a job"
    assert ids(await claim(backend)) == [*"abcdef"]
