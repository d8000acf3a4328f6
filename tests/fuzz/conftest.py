"""Two ways to fuzz: the same few examples in every run, or very many random ones (`HOLDFAST_FUZZ=long`)."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings

SMALL, LARGE = 30, 3_000
_SHARED = {"deadline": None, "database": None, "suppress_health_check": list(HealthCheck)}

settings.register_profile("fuzz", derandomize=True, max_examples=SMALL, **_SHARED)  # type: ignore[arg-type]
settings.register_profile("fuzz-long", max_examples=LARGE, print_blob=True, **_SHARED)  # type: ignore[arg-type]


@pytest.fixture(params=["database", "empty_redis", "empty_nats"], ids=["postgres", "redis", "nats"])
def url(request: pytest.FixtureRequest) -> str:
    """An empty store of each kind."""
    address: str = request.getfixturevalue(request.param)
    return address
