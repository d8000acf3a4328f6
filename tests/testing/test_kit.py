"""The test kit, used as its users do."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import holdfast
from holdfast import failpoints
from holdfast.bus.sync import SyncBus
from holdfast.testing import Clock, Drained, assert_published, drain, events


def billing(*, failures: int = 0) -> tuple[holdfast.App, list[int]]:
    """An app that publishes an invoice for each order, after some failures."""
    app, tries = holdfast.App(), list[int]()

    @app.handler("orders", "billing", max_attempts=3, backoff=["1h"])
    async def bill(event: holdfast.Event, job: holdfast.Job) -> None:
        tries.append(job.attempt)
        if len(tries) <= failures:
            raise ValueError("the bank does not answer")

    return app, tries


async def test_draining_runs_every_handler(bus: holdfast.Bus) -> None:
    app, tries = billing()
    await bus.subscribe("orders", "billing")
    await bus.publish_many("orders", [holdfast.Event({"n": n}) for n in range(10)])
    assert await drain(app, bus) == Drained(done=10, dead=0)
    assert len(tries) == 10


async def test_draining_moves_the_clock_to_retries_that_are_hours_away(bus: holdfast.Bus) -> None:
    app, tries = billing(failures=2)
    await bus.subscribe("orders", "billing", max_attempts=3, backoff=["1h"])
    await bus.publish("orders", {"n": 1})
    assert await drain(app, bus) == Drained(done=1, dead=0)
    assert tries == [1, 2, 3]


async def test_what_gives_up_is_dead(bus: holdfast.Bus) -> None:
    app, _ = billing(failures=9)
    await bus.subscribe("orders", "billing", max_attempts=3, backoff=["1h"])
    await bus.publish("orders", {"n": 1})
    assert await drain(app, bus) == Drained(done=0, dead=1)


async def test_time_stands_still_where_it_is_told_to(bus: holdfast.Bus) -> None:
    app, tries = billing(failures=1)
    await bus.subscribe("orders", "billing", max_attempts=3, backoff=["1h"])
    await bus.publish("orders", {"n": 1})
    assert await drain(app, bus, through_time=False) == Drained(done=0, dead=0)
    assert tries == [1]


async def test_a_handler_that_does_not_end_is_named_after_the_patience(bus: holdfast.Bus) -> None:
    app = holdfast.App()

    @app.handler("orders", "billing")
    async def bill(event: holdfast.Event, job: holdfast.Job) -> None:
        raise holdfast.Snooze("0s")

    await bus.subscribe("orders", "billing")
    await bus.publish("orders", {"n": 1})
    with pytest.raises(TimeoutError, match="not drained within 300ms"):
        await drain(app, bus, patience="300ms")


async def test_leases_run_out_when_the_clock_is_moved(bus: holdfast.Bus, clock: Clock) -> None:
    await bus.subscribe("orders", "billing", lease="30s")
    await bus.publish("orders", {"n": 1})
    [job] = await bus.poll("orders", "billing")
    before = await clock.now()
    assert await clock.advance("31s") == 1, "the abandoned job is ready again"
    assert (await clock.now() - before).total_seconds() >= 31
    with pytest.raises(holdfast.LeaseLost):
        await bus.finalize(job, success=True)


async def test_what_was_published_is_judged_and_shown(bus: holdfast.Bus) -> None:
    await bus.publish("invoices", {"order": 1}, id="i-1", key="cust-7")
    await bus.publish("invoices", {"order": 2}, id="i-2")
    found = await events(bus, "invoices")
    assert_published(found, count=2)
    [match] = assert_published(found, data={"order": 1}, key="cust-7")
    assert match.id == "i-1"
    with pytest.raises(
        AssertionError, match=r"(?s)expected 1 events with .*order.*: 3.*found 0; published:.*i-1"
    ):
        assert_published(found, count=1, data={"order": 3})


async def test_nothing_published_is_said(bus: holdfast.Bus) -> None:
    await bus.create_channel("invoices")
    with pytest.raises(AssertionError, match="at least one event"):
        assert_published(await events(bus, "invoices"))


def test_a_script_without_await_has_its_bus_too(sync_bus: SyncBus) -> None:
    assert sync_bus.publish("orders", {"n": 1}, id="o-1").id == "o-1"


async def test_every_test_starts_with_an_empty_store(bus: holdfast.Bus) -> None:
    assert await bus.partitions.all[0].backend.channels.names() == []


async def test_a_failpoint_makes_a_publish_fail(
    bus: holdfast.Bus, failing: type[failpoints.FailpointError]
) -> None:
    failpoints.activate("publish.before_commit", "raise")
    with pytest.raises(failing):
        await bus.publish_many("orders", [holdfast.Event(n) for n in range(5)])


def test_the_fixtures_work_as_a_plugin(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["holdfast.testing.fixtures"]\n')
    (tmp_path / "test_orders.py").write_text(
        textwrap.dedent("""
            import pytest

            from holdfast.testing import assert_published, events

            @pytest.mark.asyncio
            async def test_publish(bus, clock):
                await bus.publish("orders", {"n": 1})
                await clock.advance("1h")
                assert_published(await events(bus, "orders"), count=1, data={"n": 1})
        """)
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout
