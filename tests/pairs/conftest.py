"""One server of each kind for all rounds on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from rounds import start

from holdfast.chaos.evidence import Store


@pytest.fixture(scope="module")
def server() -> Iterator[Callable[[str], Store]]:
    """Starts the server of a kind at the first call."""
    started: dict[str, Store] = {}

    def get(name: str) -> Store:
        if name not in started:
            started[name] = start(name)
        return started[name]

    yield get
    for store in started.values():
        store.server.stop()
