"""The simulation drives our own decisions: where one of them is wrong, it is found."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from holdfast.model.decide import Action, Due, DueKind, Move, when_due
from holdfast.model.job import Failure, Job, Reason, Retry
from holdfast.model.policy import Policy
from holdfast.model.upkeep import Lock
from holdfast.pipeline.loader import loader
from holdfast.pipeline.loader.decisions import TryLater
from holdfast.pipeline.wal import upkeep as cleaning
from holdfast.upkeep import lifecycle
from holdfast.upkeep.retention import RetentionSweep
from holdfast_chaos.simulation import simulate
from holdfast_chaos.simulation.jobs import actors
from holdfast_chaos.simulation.wal import checks

SEEDS = range(40)


def _invariant(world: str) -> str:
    found = simulate(SEEDS, [world]).found
    assert found is not None
    return found.invariant


def test_a_retry_that_knows_no_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    def after_failure(job: Job, policy: Policy, failure: Failure, **_: object) -> Retry:
        return Retry(job, timedelta(seconds=1), failure)

    monkeypatch.setattr(actors, "after_failure", after_failure)
    assert _invariant("jobs") == "I4"


def test_a_lifecycle_that_gives_up_at_the_first_lost_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    def hasty(due: Due) -> Action:
        usual = when_due(due)
        lost = due.kind is DueKind.LEASE
        return Action(Move.BURY, due, Reason.CRASH_LOOP, usual.failure) if lost else usual

    monkeypatch.setattr(lifecycle, "when_due", hasty)
    assert _invariant("jobs") == "I4"


def test_a_lifecycle_that_waits_for_lost_workers_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    patient = {DueKind.SCHEDULE: when_due, DueKind.EXPIRY: when_due}
    monkeypatch.setattr(lifecycle, "when_due", lambda due: patient.get(due.kind, _promote)(due))
    assert _invariant("jobs") == "I15"


def _promote(due: Due) -> Action:
    return Action(Move.PROMOTE, due)


def test_a_loader_that_never_tries(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(now: datetime, *_: object) -> TryLater:
        return TryLater(now + timedelta(days=1))

    monkeypatch.setattr(loader, "decide", never)
    assert _invariant("wal") == "I15"


def test_a_cleaning_that_takes_fresh_segments_for_orphans(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cleaning, "ABANDONED", timedelta(0))
    assert checks.ABANDONED.days, "the checks goes by what is right"
    assert _invariant("wal") == "I9"


def test_a_retention_that_ignores_the_readers(monkeypatch: pytest.MonkeyPatch) -> None:
    async def trim(
        self: RetentionSweep, channel: str, before: datetime, lock: Lock, _: object
    ) -> tuple[int, None]:
        step = await self._backend.retention.trim(channel, before, 100, lock, ignore=("archiver", "ingest"))
        return step.removed, None

    monkeypatch.setattr(RetentionSweep, "_trim", trim)
    assert _invariant("retention") == "I7"
