"""Trace: the whole life of an event, by its id alone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from sites import CHANNEL, DAY, Site

import holdfast
from holdfast.model.errors import NotFound
from holdfast.model.job import JobRecord
from holdfast.model.position import format_position
from holdfast.model.states import State
from holdfast.pipeline.offsets import before
from holdfast.pipeline.trace import EventTrace, Step, TraceQuery, Tracer, job_steps, ordered

Trace = Callable[..., list[EventTrace]]
pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def site(database: str, tmp_path: Path) -> Site:
    return Site(database, tmp_path)


def tracer(site: Site, spark: SparkSession | None = None) -> Trace:
    """Without Spark it must do without."""

    def start() -> SparkSession:
        assert spark is not None, "this trace was to need no search"
        return spark

    found = Tracer([site.url], lambda channel: site.inputs, start)
    return lambda event, **question: found.trace(TraceQuery(event, CHANNEL, **question))


def whats(life: EventTrace) -> list[str]:
    return [step.what for step in life.steps]


async def work(url: str) -> None:
    """One failed attempt, then done; another consumer gives up, is requeued and gives up again."""
    async with holdfast.connect(url) as bus:
        await bus.subscribe(CHANNEL, "mail", backoff=["0s"])
        await bus.subscribe(CHANNEL, "bill", max_attempts=1)
        await bus.publish(CHANNEL, {"n": 1}, id="e-1", time=DAY)
        [job] = await bus.poll(CHANNEL, "mail")
        await bus.finalize(job, success=False, error="no mail server")
        [job] = await bus.poll(CHANNEL, "mail")
        await bus.finalize(job, success=True)
        for error in ("no account", "still no account"):
            [job] = await bus.poll(CHANNEL, "bill")
            await bus.finalize(job, success=False, error=error)
            if error == "no account":
                assert await bus.requeue(CHANNEL, "bill", job.id)


def test_a_whole_life_in_one_answer(site: Site) -> None:
    asyncio.run(work(site.url))
    site.archive()
    site.ingest()
    [life] = tracer(site)("e-1")
    assert (life.channel, life.source, life.id) == (CHANNEL, "default", "e-1")
    assert whats(life)[:2] == ["published", "archived"]
    assert life.steps[0].at == DAY
    jobs = {name: [s.what for s in life.steps if s.where == name] for name in ("mail", "bill")}
    assert jobs == {
        "mail": ["attempt 1", "done"],
        "bill": ["attempt 1", "requeued", "attempt 1", "dead letter"],
    }
    rest = [step.what for step in life.steps if step.what in ("in the WAL", "in the warehouse", "confirmed")]
    assert rest == ["in the WAL", "in the warehouse", "confirmed"]
    [archived] = [step for step in life.steps if step.what == "archived"]
    assert archived.where.startswith("archive/audit/2026/02/14/")
    assert archived.detail == "line 1 of 1"


def test_a_failed_event_with_what_was_done_about_it(site: Site) -> None:
    site.publish("bad", data={})
    site.ingest()
    failed = site.failed()
    name = failed.find()[0].id
    assert failed.retry(name, "ann").status == "pending"
    failed.abandon(name, "bob", "a test")
    [life] = tracer(site)("bad")
    acts = ["retry", "retry failed", "abandon"]
    assert whats(life) == ["published", "in the WAL", "failed event", "confirmed", *acts]
    assert "required fields are missing: n" in life.steps[2].detail
    assert life.steps[-1].detail == "by bob: a test"


def test_what_the_warehouse_does_not_know_is_searched_for(
    spark: SparkSession, site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    """One that is only in the log, and one only in the archive. The warehouse is gone, and stays so."""
    site.publish("old")
    site.archive()
    site.ingest()
    site.trim()
    site.file.unlink()
    site.publish("new")
    find = tracer(site, spark)
    [life] = find("new")
    assert whats(life) == ["published"]
    [life] = find("old")
    assert whats(life)[:2] == ["published", "archived"]
    assert "trimmed" in life.steps[0].detail
    with pytest.raises(NotFound, match="no trace of the event 'none'"):
        find("none")
    assert f"there is no warehouse duckdb://{site.file}" in caplog.text
    assert not site.file.exists()


def test_the_same_id_from_another_source_is_another_event(site: Site) -> None:
    with holdfast.connect_sync(site.url) as bus:
        bus.create_channel(CHANNEL)
        bus.publish(CHANNEL, {"n": 1}, id="e-1", source="a")
        bus.publish(CHANNEL, {"n": 2}, id="e-1", source="b")
    site.ingest()
    assert [life.source for life in tracer(site)("e-1")] == ["a", "b"]
    assert [life.source for life in tracer(site)("e-1", source="b")] == ["b"]


# values


@pytest.mark.parametrize(
    ("position", "previous"),
    [((1, 5), (1, 4)), ((1, 5, 0), (1, 4, 2**63 - 1)), ((2, 7, 3), (2, 7, 2))],
)
def test_the_place_before_a_position(position: tuple[int, ...], previous: tuple[int, ...]) -> None:
    assert before(format_position(*position)) == format_position(*previous)


def test_steps_are_in_the_order_of_time_after_what_has_none() -> None:
    later, sooner = datetime(2026, 1, 2, tzinfo=UTC), datetime(2026, 1, 1, tzinfo=UTC)
    steps = [Step(later, "b", "", ""), Step(sooner, "a", "", ""), Step(None, "archived", "", "")]
    future = Step(later + timedelta(days=9), "published", "", "")
    assert [step.what for step in ordered([*steps, future])] == ["published", "archived", "a", "b"]


def test_a_cancelled_job_says_who_cancelled_it_and_why() -> None:
    at = datetime(2026, 1, 1, tzinfo=UTC)
    names = ("1", CHANNEL, "mail", State.CANCELLED, "e-1", "default", "0001-01", 1, 0, 5, 0)
    times = (at, None, None, at)
    [ann] = job_steps(JobRecord(*names, *times, "w-1", "no more", [], "ann"))
    [somebody] = job_steps(JobRecord(*names, *times, "w-1", None, []))
    assert (ann.what, ann.detail) == ("cancelled", "by ann: no more; 1 attempts, 0 abandonments")
    assert somebody.detail.startswith("by somebody; 1 attempts")


def test_a_job_that_waits_after_a_requeue_says_so() -> None:
    at = datetime(2026, 1, 1, tzinfo=UTC)
    errors = [{"attempt": 3, "at": at.isoformat(), "error": "no"}]
    job = JobRecord(
        *("1", CHANNEL, "mail", State.READY, "e-1", "default", "0001-01", 0, 0, 5, 0),
        *(at, at, None, None, None, None, errors),
    )
    assert [step.what for step in job_steps(job)] == ["attempt 3", "requeued", "ready"]
