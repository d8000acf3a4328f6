"""Attempts without a limit: the column that counts them, and the list of their errors, do not run over."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from holdfast.backends.postgres import PostgresBackend
from holdfast.model.states import State
from kit import LEASE, abandon, bury, claim_one, fail, publish, record, subscribe

Sql = psycopg.Connection[tuple[Any, ...]]
MOST = 32_767
"""What a smallint holds."""


@pytest.mark.parametrize("ordered", [False, True])
async def test_the_attempt_after_the_32767th_is_claimed_like_any_other(
    backend: PostgresBackend, sql: Sql, ordered: bool
) -> None:
    await subscribe(backend, max_attempts="unlimited", ordered=ordered)
    await publish(backend, "a", key="k" if ordered else None)
    assert await fail(backend, await claim_one(backend))
    sql.execute("UPDATE holdfast.jobs SET attempts = %s", [MOST - 2])
    for attempt in (MOST - 1, MOST, MOST, MOST):
        job = await claim_one(backend)
        assert job.attempt == attempt
        assert await fail(backend, job)
    job = await claim_one(backend)
    assert await fail(backend, job, None), "given back with an error, at once"
    await claim_one(backend)
    await abandon(backend, LEASE)
    assert (await record(backend, "a")).state is State.READY
    assert await bury(backend, await claim_one(backend))
    assert (await record(backend, "a")).attempts == MOST


async def test_of_very_many_errors_the_first_and_the_latest_are_kept(
    backend: PostgresBackend, sql: Sql
) -> None:
    await subscribe(backend, max_attempts="unlimited")
    await publish(backend, "a")
    assert await fail(backend, await claim_one(backend))
    sql.execute(
        "UPDATE holdfast.jobs SET errors = (SELECT jsonb_agg(jsonb_build_object('error', n, 'at', now())"
        " ORDER BY n) FROM generate_series(1, 1000) n)"
    )
    for _ in range(3):
        assert await fail(backend, await claim_one(backend))
    errors = [each["error"] for each in (await record(backend, "a")).errors]
    assert errors == [1, 2, 3, 4, 5, *range(9, 1001), *["boom"] * 3]
