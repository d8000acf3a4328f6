"""The simulated store answers as the real ones do: what holds in the simulation is about them."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from log_model_vs_backend import LogModelVsBackend
from model_vs_backend import ModelVsBackend

from holdfast.contracts import Backend
from holdfast.wiring import backend as connect_backend
from holdfast_chaos import Violation
from holdfast_chaos.simulation.jobs.store import JobStore
from holdfast_chaos.simulation.jobs.world import CostlyExpiry, ForgetfulStore, Overtaking
from holdfast_chaos.simulation.retention.store import LogStore
from holdfast_chaos.simulation.retention.world import FastestReader, NobodyWorks, TokenlessLock

ACTS = 200


@pytest.fixture(params=["database", "empty_redis", "empty_nats"])
def url(request: pytest.FixtureRequest) -> str:
    found: str = request.getfixturevalue(request.param)
    return found


@pytest.fixture
async def real(url: str) -> AsyncIterator[Backend]:
    opened = connect_backend(url, connections=2)
    await opened.open()
    yield opened
    await opened.close()


@pytest.mark.parametrize("seed", [1, 2])
async def test_the_simulated_store_answers_as_a_real_one(real: Backend, seed: int) -> None:
    assert await _live(ModelVsBackend(real, seed)) is None


@pytest.mark.parametrize("seed", [1, 2])
async def test_the_simulated_log_answers_as_a_real_one(real: Backend, seed: int) -> None:
    assert await _live(LogModelVsBackend(real, seed)) is None


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10, 20))
@pytest.mark.parametrize("pair", [ModelVsBackend, LogModelVsBackend])
async def test_they_answer_alike_for_long(real: Backend, pair: type[ModelVsBackend], seed: int) -> None:
    assert await _live(pair(real, seed)) is None


@pytest.mark.parametrize("url", ["empty_redis"], indirect=True)
@pytest.mark.parametrize("store", [CostlyExpiry, ForgetfulStore, Overtaking])
async def test_a_store_with_a_defect_answers_otherwise(real: Backend, store: type[JobStore]) -> None:
    with pytest.raises(AssertionError):
        await _live(ModelVsBackend(real, 1, store))


@pytest.mark.parametrize("url", ["empty_redis"], indirect=True)
@pytest.mark.parametrize("store", [FastestReader, NobodyWorks, TokenlessLock])
async def test_a_log_with_a_defect_answers_otherwise(real: Backend, store: type[LogStore]) -> None:
    with pytest.raises(AssertionError):
        await _live(LogModelVsBackend(real, 2, store))


async def _live(pair: ModelVsBackend) -> Violation | None:
    """Act on both, side by side. Returns what the checks of the simulated one have found."""
    await pair.open()
    for number in range(1, ACTS + 1):
        await pair.act()
        if number % 20 == 0:
            await pair.compare()
    return pair.violation
