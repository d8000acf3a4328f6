"""The simulated store answers as the real ones do: what holds in the simulation is about them."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from logtwins import LogTwins
from twins import Twins

from holdfast.chaos.simulation.jobs.defects import CostlyExpiry, Forgetful, Overtaking
from holdfast.chaos.simulation.jobs.store import JobStore
from holdfast.chaos.simulation.retention.defects import FastestReader, NobodyWorks, TokenlessLock
from holdfast.chaos.simulation.retention.store import LogStore
from holdfast.chaos.simulation.stage import Violation
from holdfast.contracts import Backend
from holdfast.wiring import backend as connect_backend

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
    assert await _live(Twins(real, seed)) is None


@pytest.mark.parametrize("seed", [1, 2])
async def test_the_simulated_log_answers_as_a_real_one(real: Backend, seed: int) -> None:
    assert await _live(LogTwins(real, seed)) is None


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10, 20))
@pytest.mark.parametrize("twins", [Twins, LogTwins])
async def test_they_answer_alike_for_long(real: Backend, twins: type[Twins], seed: int) -> None:
    assert await _live(twins(real, seed)) is None


@pytest.mark.parametrize("url", ["empty_redis"], indirect=True)
@pytest.mark.parametrize("store", [CostlyExpiry, Forgetful, Overtaking])
async def test_a_store_with_a_defect_answers_otherwise(real: Backend, store: type[JobStore]) -> None:
    with pytest.raises(AssertionError):
        await _live(Twins(real, 1, store))


@pytest.mark.parametrize("url", ["empty_redis"], indirect=True)
@pytest.mark.parametrize("store", [FastestReader, NobodyWorks, TokenlessLock])
async def test_a_log_with_a_defect_answers_otherwise(real: Backend, store: type[LogStore]) -> None:
    with pytest.raises(AssertionError):
        await _live(LogTwins(real, 2, store))


async def _live(twins: Twins) -> Violation | None:
    """Both lives, side by side; answers what the judge of the simulated one has found."""
    await twins.open()
    for number in range(1, ACTS + 1):
        await twins.act()
        if number % 20 == 0:
            await twins.compare()
    return twins.violation
