"""`holdfast jobs`: the administrator's tasks."""

from __future__ import annotations

from datetime import timedelta

import pytest
from shell import Run

import holdfast
from holdfast.bus.sync import SyncBus
from holdfast.model.job import Job

psycopg = pytest.importorskip("psycopg")


@pytest.fixture(autouse=True)
def _consumers(hf: SyncBus) -> None:
    hf.subscribe("orders", "billing", max_attempts=1)
    hf.subscribe("orders", "audit")


@pytest.fixture
def job(hf: SyncBus) -> Job:
    """billing's job for the event o-1, leased."""
    hf.publish("orders", {"n": 1}, id="o-1")
    [leased] = hf.poll("orders", "billing")
    return leased


def _wait(database: str, by: timedelta) -> None:
    """Let the store's time go by."""
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("UPDATE holdfast.store SET clock_offset = clock_offset + %s", (by,))


def test_stuck(run: Run, job: Job, database: str) -> None:
    assert run("jobs", "stuck", "--json").json == []
    assert run("jobs", "stuck").err == "no job is stuck\n"
    _wait(database, timedelta(minutes=6))
    [found] = run("jobs", "stuck", "--json").json
    assert (found["event_id"], found["consumer"]) == ("o-1", "billing")
    assert (found["state"], found["partition"], found["abandonments"]) == ("leased", 0, 0)
    header, row = run("jobs", "stuck").out.splitlines()
    assert header.startswith("CHANNEL")
    assert row.split()[:3] == ["orders", "billing", "o-1"]


def test_to_look_changes_nothing(run: Run, hf: SyncBus, job: Job, database: str) -> None:
    _wait(database, timedelta(minutes=6))
    for command in (["jobs", "stuck"], ["jobs", "show", "orders", "o-1"], ["consumers", "list"], ["check"]):
        run(*command)
    run("consumers", "show", "orders", "billing")
    assert len(run("jobs", "stuck", "--json").json) == 1
    hf.finalize(job, success=True)  # late, but nobody else was given it


def test_show_tells_every_attempt(run: Run, hf: SyncBus, job: Job) -> None:
    hf.finalize(job, success=False, error="the card\x1b[31m was declined")
    audit, billing = run("jobs", "show", "orders", "o-1", "--json").json
    assert (audit["consumer"], audit["state"]) == ("audit", "ready")
    assert (billing["state"], billing["reason"], billing["attempts"]) == ("dead", "max_attempts", 1)
    assert billing["errors"][0]["error"] == "the card\x1b[31m was declined"
    shown = run("jobs", "show", "orders", "o-1").out
    assert "attempt 1" in shown
    assert "was declined" in shown
    assert "\x1b" not in shown


def test_requeue_the_dead(run: Run, hf: SyncBus, job: Job) -> None:
    hf.finalize(job, success=False)
    answer = run("jobs", "requeue", "orders", "billing", "o-1")
    assert answer.code == 0
    assert "it was dead" in answer.err
    [again] = hf.poll("orders", "billing")
    assert (again.event.id, again.attempt) == ("o-1", 1)


def test_requeue_of_live_work_says_that_a_lease_is_lost(run: Run, hf: SyncBus, job: Job) -> None:
    answer = run("jobs", "requeue", "orders", "billing", "o-1")
    assert answer.code == 0
    assert f"the lease of worker {hf._bus.name} is lost" in answer.err
    with pytest.raises(holdfast.LeaseLost):
        hf.finalize(job, success=True)


def test_requeue_as_json(run: Run, job: Job) -> None:
    answer = run("jobs", "requeue", "orders", "billing", "o-1", "--json")
    assert answer.json == {"job": job.id, "was": "leased", "lease_lost": True}


def test_cancel_one_or_all(run: Run, hf: SyncBus) -> None:
    hf.publish_many("orders", [holdfast.Event(1, id="a"), holdfast.Event(1, id="b", source="shop")])
    assert run("jobs", "cancel", "orders", "a", "--consumer", "audit").err == "1 job of a cancelled\n"
    assert run("jobs", "cancel", "orders", "b", "--source", "shop", "--json").json == {"cancelled": 2}
    assert [job["state"] for job in run("jobs", "show", "orders", "a", "--json").json] == [
        "cancelled",
        "ready",
    ]


def test_what_is_leased_is_not_cancelled(run: Run, job: Job) -> None:
    answer = run("jobs", "cancel", "orders", "o-1", "--consumer", "billing")
    assert (answer.code, answer.err) == (1, "0 jobs of o-1 cancelled\n")


def test_what_is_leased_is_cancelled_where_that_is_asked_for(run: Run, hf: SyncBus, job: Job) -> None:
    asked = ["jobs", "cancel", "orders", "o-1", "--running", "--by", "ann", "--reason", "no more"]
    assert run(*asked).err == "2 jobs of o-1 cancelled\n"
    with pytest.raises(holdfast.LeaseLost):
        hf.finalize(job, success=True)
    for kept in run("jobs", "show", "orders", "o-1", "--json").json:
        assert (kept["state"], kept["cancelled_by"], kept["reason"]) == ("cancelled", "ann", "no more")
    assert "cancelled by  ann" in run("jobs", "show", "orders", "o-1").out
    answer = run(*asked)
    assert (answer.code, answer.err) == (1, "0 jobs of o-1 cancelled\n")
    assert run("jobs", "cancel", "orders", "o-1", "--reason", "a\nb").code != 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["show", "orders", "nope"], "no job for the event 'nope'"),
        (["show", "nope", "o-1"], "channel 'nope' has no job"),
        (["show", "orders", "o-1", "--source", "other"], "source 'other'"),
        (["cancel", "orders", "nope"], "no job for the event 'nope'"),
        (["cancel", "orders", "o-1", "--consumer", "nope"], "these have: audit, billing"),
        (["requeue", "orders", "billing", "nope"], "no job for the event 'nope'"),
        (["requeue", "orders", "nope", "o-1"], "these have: audit, billing"),
    ],
)
def test_what_is_not_there_ends_with_1(run: Run, job: Job, arguments: list[str], said: str) -> None:
    answer = run("jobs", *arguments)
    assert (answer.code, answer.out) == (1, "")
    assert said in answer.err


def test_a_done_job_is_not_requeued(run: Run, hf: SyncBus, job: Job) -> None:
    hf.finalize(job, success=True)
    answer = run("jobs", "requeue", "orders", "billing", "o-1")
    assert answer.code == 1
    assert "'o-1' is done" in answer.err


def test_a_limit_below_one_is_wrong_usage(run: Run) -> None:
    assert run("jobs", "stuck", "--limit", "0").code == 2
