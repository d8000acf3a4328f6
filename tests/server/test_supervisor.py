"""The supervisor: what dies is restarted and shown, and everything is drained."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest
from running import Script

from holdfast.bus.shutdown import stop_on_signal
from holdfast.model.backoff import backoff_seconds
from holdfast.server.supervisor import LONGEST, Phase, Supervisor
from kit import until


class Slow(Script):
    """A part that takes its time to stop, or fails while it does."""

    def __init__(self, *, error: Exception | None = None, forever: bool = False, quiet: bool = False) -> None:
        super().__init__("wait", name="slow")
        self.finished = asyncio.Event()
        self._error, self._forever, self._quiet = error, forever, quiet

    async def run(self) -> None:
        try:
            await super().run()
        except asyncio.CancelledError:
            while self._forever:
                await _undisturbed()
            if self._error is not None:
                raise self._error from None
            self.finished.set()
            if not self._quiet:
                raise


async def _undisturbed() -> None:
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        return


def supervise(*parts: Script) -> tuple[Supervisor, asyncio.Event, asyncio.Task[list[str]]]:
    supervisor, stop = Supervisor(first=0.001, longest=0.002), asyncio.Event()
    for part in parts:
        supervisor.add(part)
    return supervisor, stop, asyncio.create_task(supervisor.run(stop, grace=0.1))


async def test_a_part_that_raises_ends_or_is_cancelled_is_restarted_and_the_others_go_on() -> None:
    ill = Script(ValueError("no luck"), "end", asyncio.CancelledError(), "wait")
    well = Script("wait", name="well")
    supervisor, stop, task = supervise(ill, well)
    kept = supervisor.services[0]

    async def recovered() -> bool:
        return ill.runs == 4

    await until(recovered)
    assert (kept.phase, kept.restarts, kept.status()) == (Phase.RUNNING, 3, "run 4")
    assert (well.runs, supervisor.services[1].restarts) == (1, 0)
    stop.set()
    assert await task == []


async def test_a_part_that_waits_for_its_restart_is_shown_with_the_reason() -> None:
    supervisor, stop = Supervisor(first=60.0), asyncio.Event()
    supervisor.add(Script(ValueError("no luck")))
    task = asyncio.create_task(supervisor.run(stop))
    [kept] = supervisor.services
    assert kept.phase is Phase.STARTING

    async def restarting() -> bool:
        return kept.phase is Phase.RESTARTING

    await until(restarting)
    assert (kept.status(), kept.restarts) == ("ValueError: no luck", 1)
    stop.set()
    assert await task == []
    assert (kept.phase, kept.status()) == (Phase.STOPPED, "stopped")


async def test_pauses_double_up_to_a_bound() -> None:
    supervisor = Supervisor()
    for failures, most in ((1, 1.0), (2, 2.0), (4, 8.0), (7, LONGEST), (10_000, LONGEST)):
        pauses = [backoff_seconds(failures, supervisor._first, supervisor._longest) for _ in range(20)]
        assert all(most / 2 <= pause <= most for pause in pauses)


@pytest.mark.parametrize("quiet", [False, True])
async def test_a_part_may_finish_what_it_does_when_everything_stops(quiet: bool) -> None:
    part = Slow(quiet=quiet)
    supervisor, stop, task = supervise(part, Script("wait"))
    await asyncio.sleep(0)
    stop.set()
    assert await task == []
    assert part.finished.is_set()
    assert [each.phase for each in supervisor.services] == [Phase.STOPPED, Phase.STOPPED]
    assert supervisor.stopping


async def test_a_part_that_fails_while_it_stops_is_named() -> None:
    _, stop, task = supervise(Slow(error=OSError("disk")), Script("wait"))
    await asyncio.sleep(0)
    stop.set()
    assert await task == ["slow"]


async def test_a_part_that_does_not_stop_is_named_and_not_waited_for() -> None:
    part = Slow(forever=True)
    _, stop, task = supervise(part, Script("wait"))
    await asyncio.sleep(0)
    stop.set()
    assert await task == ["slow"]
    part._forever = False
    [left] = [each for each in asyncio.all_tasks() if each.get_name() == "slow"]
    left.cancel()
    await asyncio.wait([left])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_the_first_signal_asks_and_the_second_one_insists(number: int) -> None:
    asked = asyncio.Event()

    async def main() -> None:
        with stop_on_signal() as stop:
            os.kill(os.getpid(), number)
            await stop.wait()
            asked.set()
            os.kill(os.getpid(), number)
            await asyncio.Event().wait()

    task = asyncio.create_task(main())
    await asyncio.wait([task], timeout=60)
    assert asked.is_set()
    assert task.cancelled()
