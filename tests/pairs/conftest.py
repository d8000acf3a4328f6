"""One server of each kind for all rounds on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from rounds import start

from holdfast_chaos.final_state import ServerUnderTest


@pytest.fixture(scope="module")
def server() -> Iterator[Callable[[str], ServerUnderTest]]:
    """Starts the server of a kind at the first call."""
    started: dict[str, ServerUnderTest] = {}

    def get(name: str) -> ServerUnderTest:
        if name not in started:
            started[name] = start(name)
        return started[name]

    yield get
    for store in started.values():
        store.server.stop()
