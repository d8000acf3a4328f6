"""Costs: what a step asks of the server does not depend on how many jobs wait."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta

import pytest

from holdfast.backends.nats import NatsBackend
from holdfast.backends.nats.link import Link
from kit import CHANNEL, CONSUMER, publish, subscribe


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every question to the server."""
    questions: list[str] = []
    for name in ("read", "request"):
        original = getattr(Link, name)

        async def counted(self: Link, query: object, *rest: object, original: object = original) -> object:
            questions.append(str(query))
            return await original(self, query, *rest)  # type: ignore[operator]

        monkeypatch.setattr(Link, name, counted)
    return questions


async def questions(asked: list[str], call: Callable[[], Awaitable[object]]) -> int:
    asked.clear()
    await call()
    return len(asked)


async def test_a_lifecycle_read_costs_the_same_however_many_wait(
    backend: NatsBackend, asked: list[str]
) -> None:
    await subscribe(backend)
    later = await backend.now() + timedelta(days=1)
    await publish(backend, "now", "too")
    await publish(backend, "later", at=later)
    await backend.due(100)
    few = await questions(asked, lambda: backend.due(100))
    await publish(backend, *(f"e-{n}" for n in range(2000)))
    await publish(backend, *(f"l-{n}" for n in range(2000)), at=later)
    await backend.due(100)
    assert await questions(asked, lambda: backend.due(100)) == few <= 4
    assert (await backend.due(100)).load == 4003


async def test_a_publisher_does_not_read_the_jobs(backend: NatsBackend, asked: list[str]) -> None:
    await subscribe(backend)
    await publish(backend, *(f"e-{n}" for n in range(100)))
    await backend.claim(CHANNEL, CONSUMER, 100, "w")
    publisher = backend.fork()
    await publisher.open()
    await publish(publisher, "a")
    assert publisher._store.mirror.queues.jobs == {}
    assert await questions(asked, lambda: publish(publisher, "b")) == 1
    await publisher.close()
