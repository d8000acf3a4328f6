"""Durable servers of their own for the crash tests, which kill them, and a rig for each test and store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from holdfast_chaos.final_state import ServerUnderTest
from holdfast_chaos.rig import Rig
from holdfast_chaos.stores import STORES
from kit import in_memory


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test of the rig runs on every kind of store, unless it names its own."""
    named = any("store" in mark.args[0] for mark in metafunc.definition.iter_markers("parametrize"))
    if "store" in metafunc.fixturenames and not named:
        metafunc.parametrize("store", STORES, indirect=True)


@pytest.fixture(scope="session")
def stores() -> Iterator[dict[str, ServerUnderTest]]:
    """The servers, each started when it is first asked for. Whoever kills one starts it again."""
    started: dict[str, ServerUnderTest] = {}
    yield started
    for store in started.values():
        store.server.stop()


@pytest.fixture
async def store(request: pytest.FixtureRequest, stores: dict[str, ServerUnderTest]) -> ServerUnderTest:
    """One of the servers, with durable settings. Its folder is in memory where there is enough: what a killed
    process has written survives it either way."""
    name: str = request.param
    if name not in stores:
        with in_memory():
            stores[name] = await asyncio.to_thread(STORES[name])
    return stores[name]


@pytest.fixture
async def rig(store: ServerUnderTest, tmp_path: Path) -> AsyncIterator[Rig]:
    made = Rig(store, await store.empty(), tmp_path)
    yield made
    await asyncio.to_thread(made.close)
