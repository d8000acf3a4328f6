"""A dry run says exactly what the sweep after it does, and changes nothing."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest

from holdfast.contracts import Backend
from holdfast.deadletters.service import Folding
from holdfast.model.event import DEFAULT_SOURCE, Event
from holdfast.upkeep.announcements import Swept
from holdfast.upkeep.rules import Keep, Rules
from holdfast.upkeep.sweeper import Sweeper
from kit import CHANNEL, CONSUMER, bury, claim, claim_one, complete, fail, publish, subscribe
from stores import Store

DAY = timedelta(days=1)
Scene = Callable[[Backend], Awaitable[dict[str, Any] | None]]
"""Makes a situation; answers rules of its own, if it has any."""
SCENES: dict[str, Scene] = {}
LONG = (
    "nobody_reads",
    "a_cursor_has_read_nothing",
    "a_lease_ran_out",
    "what_holds_it_expires",
    "a_retry_waits",
)
"""Those that others cover as well."""


def scene(make: Scene) -> Scene:
    SCENES[make.__name__] = make
    return make


@scene
async def nobody_reads(backend: Backend) -> None:
    await publish(backend, "a", "b")
    await backend.advance(DAY)
    await publish(backend, "young")


@scene
async def a_cursor_is_behind(backend: Backend) -> None:
    first, *_ = await publish(backend, "a", "b", "c")
    await backend.cursors.attach(CHANNEL, "archiver")
    await backend.cursors.attach(CHANNEL, "ingest")
    assert await backend.cursors.move(CHANNEL, "archiver", None, first.position)
    await backend.cursors.move(CHANNEL, "ingest", None, first.position)
    await backend.advance(DAY)


@scene
async def a_cursor_has_read_nothing(backend: Backend) -> None:
    await backend.cursors.attach(CHANNEL, "archiver")
    await publish(backend, "a", "b", "c", "d", "e")
    await backend.advance(DAY)


@scene
async def a_worker_has_not_finished(backend: Backend) -> None:
    await subscribe(backend)
    await publish(backend, "done", "waits", "behind")
    assert await complete(backend, await claim_one(backend))
    await backend.advance(DAY)


@scene
async def a_lease_ran_out(backend: Backend) -> None:
    await subscribe(backend, max_abandonments=3)
    await publish(backend, "a", "b")
    await claim_one(backend)
    await backend.advance(DAY)


@scene
async def what_holds_it_is_given_up_by_the_same_sweep(backend: Backend) -> None:
    await subscribe(backend, max_abandonments=1)
    await publish(backend, "stuck", "b")
    await claim_one(backend)
    assert await complete(backend, await claim_one(backend))
    await backend.advance(DAY)


@scene
async def what_holds_it_is_discarded_by_the_same_sweep(backend: Backend) -> None:
    await subscribe(backend, max_abandonments=1, on_dead="discard")
    await publish(backend, "stuck", "b", "c")
    await claim(backend, 2)
    await backend.advance(DAY)


@scene
async def what_holds_it_expires(backend: Backend) -> None:
    await subscribe(backend, expires_after="1h")
    await publish(backend, "a", "b")
    await backend.advance(DAY)


@scene
async def dead_letters_keep_their_events(backend: Backend) -> None:
    await subscribe(backend)
    await publish(backend, "a", "dead", "c", "d")
    for job in await claim(backend, 3):
        assert await (bury if job.event.id == "dead" else complete)(backend, job)
    await backend.advance(DAY)


@scene
async def a_dead_letter_behind_the_trim_came_back(backend: Backend) -> None:
    await subscribe(backend)
    await publish(backend, "dead", "b")
    letter, other = await claim(backend)
    assert await bury(backend, letter)
    assert await complete(backend, other)
    await backend.advance(DAY)
    await sweeper(backend).run_once()
    assert await backend.deadletters.revive(CHANNEL, CONSUMER, [letter.id]) == [True]
    assert await complete(backend, await claim_one(backend))


@scene
async def jobs_are_scheduled(backend: Backend) -> None:
    await subscribe(backend)
    now = await backend.now()
    await publish(backend, "due", at=now + timedelta(hours=1))
    await publish(backend, "later", at=now + 30 * DAY)
    await publish(backend, "ready")
    assert await complete(backend, await claim_one(backend))
    await backend.advance(DAY)


@scene
async def a_retry_waits(backend: Backend) -> None:
    await subscribe(backend)
    await publish(backend, "a", "b")
    first, second = await claim(backend)
    assert await fail(backend, first, 2 * DAY)
    assert await complete(backend, second)
    await backend.advance(DAY)


@scene
async def a_group_that_guards_does_not_exist(backend: Backend) -> dict[str, Any]:
    await publish(backend, "a", "b")
    await backend.advance(DAY)
    return {"guard_groups": {CHANNEL: ["missing"]}}


@scene
async def it_is_too_large(backend: Backend) -> dict[str, Any]:
    await backend.cursors.attach("large", "archiver")
    for channel in ("small", "large"):
        await backend.log.publish(channel, [Event(b"x" * 10_000, str(number)) for number in range(40)])
    bound = {"small": Keep(max_bytes=100_000), "large": Keep(max_bytes=100_000, on_full="drop_oldest")}
    return {"retention": bound}


@scene
async def it_is_too_large_and_a_job_waits(backend: Backend) -> dict[str, Any]:
    await subscribe(backend)
    await backend.log.publish(CHANNEL, [Event(b"x" * 10_000, str(number)) for number in range(40)])
    jobs = await claim(backend, 10)
    for job in jobs[:4]:
        assert await bury(backend, job)
    for job in jobs[4:]:
        assert await complete(backend, job)
    return {"retention": {CHANNEL: Keep(max_bytes=200_000, on_full="drop_oldest")}}


@scene
async def everything_is_past_its_time(backend: Backend) -> dict[str, Any]:
    await subscribe(backend)
    await publish(backend, "done", "cancelled", "dead", "kept")
    for job in await claim(backend, 1):
        assert await complete(backend, job)
    assert await backend.leases.cancel(CHANNEL, DEFAULT_SOURCE, "cancelled", CONSUMER) == 1
    assert await bury(backend, await claim_one(backend))
    await backend.advance(20 * DAY)
    await publish(backend, "young")
    return {"dead_letters": 10 * DAY}


def sweeper(backend: Backend, rules: dict[str, Any] | None = None) -> Sweeper:
    chosen = Rules(**{"retention": {CHANNEL: Keep(max_age=DAY)}, **(rules or {})})
    folding = Folding(backend, "tester", timedelta(0))
    chores, forecasts = {"folded": folding.run_once}, {"folded": folding.forecast}
    return Sweeper(backend, chosen, "tester", chores=chores, forecasts=forecasts)


def said(report: Swept) -> dict[str, Any]:
    """What a report counts. Jobs that a sweep moves change what it folds: a dry run says what waits."""
    told = report.model_dump(exclude={"started_at", "duration_seconds", "token", "dry_run"})
    for held in told["held"]:
        del held["age_seconds"]
    if report.buried or report.retried or report.promoted:
        del told["chores"]
    return told


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name in LONG else ()) for name in SCENES]
)
async def test_a_sweep_does_what_the_dry_run_said(backend: Backend, name: str) -> None:
    rules = await SCENES[name](backend)
    before = await backend.log.read(CHANNEL, None, 100)
    would = await sweeper(backend, rules).dry_run()
    assert said(await sweeper(backend, rules).dry_run()) == said(would), "it changed nothing"
    assert await backend.log.read(CHANNEL, None, 100) == before
    done = await sweeper(backend, rules).run_once()
    assert done is not None
    assert said(would) == said(done)


async def test_a_group_that_guards_is_asked(backend: Backend, store: Store) -> None:
    if not backend.capabilities.foreign_groups:
        return
    await publish(backend, "a", "b")
    await store.form_group(CHANNEL, "mail")
    await backend.advance(DAY)
    rules = {"guard_groups": {CHANNEL: ["mail"]}}
    would = await sweeper(backend, rules).dry_run()
    assert ([held.consumer for held in would.held], would.trimmed) == (["mail"], {})
    done = await sweeper(backend, rules).run_once()
    assert done is not None
    assert said(would) == said(done)
    would = await sweeper(backend).dry_run()
    assert would.trimmed == {CHANNEL: 2}


async def test_more_than_a_step_is_counted_whole(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.upkeep.retention.STEP", 700)
    monkeypatch.setattr("holdfast.upkeep.sweeper._STEP", 700)
    await backend.log.publish(CHANNEL, [Event(b"{}", str(number)) for number in range(1_800)])
    await backend.advance(20 * DAY)
    await publish(backend, "young")
    would = await sweeper(backend).dry_run()
    done = await sweeper(backend).run_once()
    assert done is not None
    assert said(would) == said(done)
    assert done.trimmed == {CHANNEL: 1_800}
