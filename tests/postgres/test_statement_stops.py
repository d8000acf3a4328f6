"""Two verbs at once, one of them stopped between its statements while the other commits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from itertools import count
from typing import Any

import psycopg
import pytest

import stops
from holdfast.backends.postgres import PostgresBackend
from holdfast.model.event import Event
from holdfast.model.job import Cancellation, Job, Retry
from holdfast.model.states import State
from kit import BOOM, CHANNEL, CONSUMER, claim, ids, publish, record, states, subscribe

Sql = psycopg.Connection[tuple[Any, ...]]


@pytest.fixture
async def stoppable(database: str, backend: PostgresBackend, sql: Sql) -> AsyncIterator[PostgresBackend]:
    """Another backend on the same database, whose one session stops where it is told to."""
    stops.install(sql)
    opened = PostgresBackend(database, connections=1)
    await opened.open()
    yield opened
    await opened.close()


@pytest.mark.concurrency
@pytest.mark.parametrize("number", [0, 5, 300])
async def test_a_claim_beside_a_cancel_of_an_event_that_waits(
    database: str, backend: PostgresBackend, stoppable: PostgresBackend, number: int
) -> None:
    """The cancel waits for its turn, and finds its event where the claim left it: leased, or waiting."""
    await subscribe(backend)
    await backend.log.publish(CHANNEL, [Event(b"{}", f"b-{number}") for number in range(600)])
    await stops.stop_at(stoppable, 1)
    (jobs, cancelled), stopped = await stops.while_stopped(
        database, claim(stoppable, 10), backend.leases.cancel(CHANNEL, "default", f"b-{number}", None)
    )
    assert stopped
    assert ids(jobs) == [f"b-{n}" for n in range(10)]
    assert cancelled == (number >= 10)
    rest = await claim(backend, 1000)
    assert ids(rest) == [f"b-{n}" for n in range(10, 600) if n != number]
    assert await backend.leases.complete([*jobs, *rest]) == [True] * (600 - cancelled)


@pytest.mark.concurrency
@pytest.mark.parametrize("at", ["first", "middle", "last"])
async def test_a_claim_beside_a_requeue_of_an_event_that_waits(
    database: str, backend: PostgresBackend, stoppable: PostgresBackend, at: str
) -> None:
    """The requeue waits for its turn. By then the job is leased with others, and it alone is lost."""
    await subscribe(backend)
    await backend.log.publish(CHANNEL, [Event(b"{}", f"b-{number}") for number in range(600)])
    name = {"first": "b-0", "middle": "b-300", "last": "b-599"}[at]
    job = await record(backend, name)
    await stops.stop_at(stoppable, 1)
    (jobs, requeued), stopped = await stops.while_stopped(
        database, claim(stoppable, 1000), backend.leases.requeue(CHANNEL, CONSUMER, job.id)
    )
    assert stopped
    assert requeued
    assert ids(jobs) == [f"b-{number}" for number in range(600)]
    rest = await claim(backend, 1000)
    assert ids(rest) == [name]
    assert await states(backend) == {State.LEASED: 600}
    assert await backend.leases.complete([*jobs, *rest]) == [each != name for each in ids(jobs)] + [True]


BESIDE: dict[str, Callable[[PostgresBackend, Sequence[Job]], Awaitable[list[bool]]]] = {
    "complete": lambda backend, jobs: backend.leases.complete(jobs),
    "retry": lambda backend, jobs: backend.leases.retry([Retry(job, None, BOOM) for job in jobs]),
}


@pytest.mark.concurrency
@pytest.mark.parametrize(
    ("verb", "cancels_first"), [("complete", True), ("complete", False), ("retry", True)]
)
async def test_a_cancel_of_what_runs_beside_its_worker(
    database: str, backend: PostgresBackend, stoppable: PostgresBackend, verb: str, cancels_first: bool
) -> None:
    """Wherever one of them stops: what is cancelled is told so once, and its neighbours go on."""
    await subscribe(backend)
    act, how = BESIDE[verb], Cancellation(running=True, by="ann")
    for point in count(1):
        names = [f"{point}-{number}" for number in range(3)]
        await publish(backend, *names)
        jobs = [job for job in await claim(backend, 1000) if job.event.id in names]
        one, two = (stoppable, backend) if cancels_first else (backend, stoppable)
        cancel = one.leases.cancel(CHANNEL, "default", names[1], None, how)
        await stops.stop_at(stoppable, point)
        if cancels_first:
            (cancelled, accepted), stopped = await stops.while_stopped(database, cancel, act(two, jobs))
        else:
            (accepted, cancelled), stopped = await stops.while_stopped(database, act(two, jobs), cancel)
        await stops.stop_at(stoppable, 0)
        found = await record(backend, names[1])
        assert (accepted[0], accepted[2]) == (True, True)
        assert (found.state is State.CANCELLED) == cancelled
        assert cancelled or accepted[1]
        if verb == "complete":
            assert cancelled + accepted[1] == 1, point
        if not stopped:
            assert point > 5
            return


async def test_an_ordered_claim_hands_out_what_was_published_while_it_waited(
    database: str, backend: PostgresBackend, stoppable: PostgresBackend
) -> None:
    await subscribe(backend, ordered=True)
    await stops.stop_at(stoppable, 1)
    (jobs, _), stopped = await stops.while_stopped(
        database, claim(stoppable), publish(backend, "e-1", "e-2", "e-3")
    )
    assert stopped
    leased = (await states(backend)).get(State.LEASED, 0)
    assert len(jobs) == leased, "every lease is somebody's"
    assert sorted(ids([*jobs, *await claim(backend)])) == ["e-1", "e-2", "e-3"]


async def test_a_claim_that_looks_at_very_many_events_asks_again(backend: PostgresBackend) -> None:
    """One statement looks at so many only. It leases nothing then, and what it passed stays passed."""
    await backend.log.publish(CHANNEL, [Event(b"{}", f"early-{number}") for number in range(6000)])
    await subscribe(backend, start=await backend.now())
    await publish(backend, "e-1", "e-2")
    names = {"channel": CHANNEL, "consumer": CONSUMER, "worker": "w", "limit": 10}
    assert await backend._session.rows("claim", **names) == [(None,) * 13]
    assert await states(backend) == {State.READY: 2}
    assert ids(await claim(backend)) == ["e-1", "e-2"]


@pytest.mark.concurrency
async def test_many_who_claim_and_cancel_at_once_leave_nothing_behind(
    database: str, backend: PostgresBackend, sql: Sql
) -> None:
    await subscribe(backend)
    for batch in range(4):
        await backend.log.publish(CHANNEL, [Event(b"{}", f"{batch}-{number}") for number in range(600)])

    async def work() -> list[str]:
        done: list[str] = []
        while jobs := await claim(backend, 7):
            assert all(await backend.leases.complete(jobs))
            done += ids(jobs)
        return done

    async def cancel(batch: int) -> int:
        return sum(
            [
                await backend.leases.cancel(CHANNEL, "default", f"{batch}-{number}", None)
                for number in range(0, 600, 7)
            ]
        )

    *done, first, second, third, fourth = await asyncio.gather(
        work(), work(), work(), *(cancel(batch) for batch in range(4))
    )
    rest = await claim(backend, 2400)
    finished = [each for mine in done for each in mine] + ids(rest)  # type: ignore[union-attr]
    assert len(set(finished)) == len(finished) == 2400 - first - second - third - fourth  # type: ignore[operator]
