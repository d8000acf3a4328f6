"""The supervisor: keeps parts running, restarts what dies, and drains everything when told to stop."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from prometheus_client.core import Metric

log = logging.getLogger(__name__)

FIRST, LONGEST = 1.0, 60.0
GRACE = 10.0


class Part(Protocol):
    """Something that runs for as long as the process does."""

    name: str

    async def run(self) -> None:
        """Work until cancelled; then finish what cannot be left as it is, and end.

        Returning or raising before that is a failure: the part is restarted.
        """

    def status(self) -> str:
        """What it is doing, in a few words that change only when there is news."""

    def metrics(self) -> Iterable[Metric]:
        """What it has counted so far."""


class Phase(StrEnum):
    """Where a part is."""

    STARTING = "starting"
    RUNNING = "running"
    RESTARTING = "restarting"
    STOPPED = "stopped"


@dataclass(slots=True)
class Kept:
    """A part under supervision."""

    part: Part
    phase: Phase = Phase.STARTING
    restarts: int = 0
    reason: str = ""

    def status(self) -> str:
        """One line about it."""
        return self.part.status() if self.phase is Phase.RUNNING else self.reason


class Supervisor:
    """Runs parts. One that dies is restarted after a pause that doubles while it keeps dying."""

    def __init__(self, *, first: float = FIRST, longest: float = LONGEST) -> None:
        self.kept: list[Kept] = []
        self.stopping = False
        self.on_stop: list[Callable[[], None]] = []
        """Called when `stopping` has become true: for those who wait and should wait no longer."""
        self._first, self._longest = first, longest
        self._grace = GRACE

    def add(self, part: Part, grace: float = GRACE) -> None:
        """Take a part in; it starts with `run`, and gets `grace` seconds to finish when all is drained."""
        self.kept.append(Kept(part))
        self._grace = max(self._grace, grace)

    async def run(self, stop: asyncio.Event, grace: float | None = None) -> list[str]:
        """Run everything until `stop` is set, then drain; answers which parts did not end as they should."""
        tasks = [asyncio.create_task(self._keep(kept), name=kept.part.name) for kept in self.kept]
        try:
            await stop.wait()
        finally:
            self.stopping = True
            for told in self.on_stop:
                told()
            for task in tasks:
                task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=self._grace if grace is None else grace)
        return [task.get_name() for task in tasks if not task.done() or _failed(task)]

    async def _keep(self, kept: Kept) -> None:
        try:
            await self._run_again(kept)
        finally:
            kept.phase, kept.reason = Phase.STOPPED, "stopped"

    async def _run_again(self, kept: Kept) -> None:
        failures = 0
        while True:
            kept.phase, began = Phase.RUNNING, time.monotonic()
            kept.reason = await self._run_once(kept.part)
            if self.stopping:
                return
            failures = 1 if time.monotonic() - began > self._longest else failures + 1
            kept.phase, kept.restarts = Phase.RESTARTING, kept.restarts + 1
            await asyncio.sleep(self._pause(failures))

    async def _run_once(self, part: Part) -> str:
        """Run a part until it fails; answers why. A cancellation that is not ours is a failure too."""
        try:
            await part.run()
        except asyncio.CancelledError:
            reason = "was cancelled"
        except Exception as error:  # whatever it is, the part is started again
            if self.stopping:
                raise
            log.exception("part %s failed", part.name)
            reason = f"{type(error).__name__}: {error}"
        else:
            reason = "ended"
        if not self.stopping:
            log.warning("part %s is restarted: %s", part.name, reason)
        return reason

    def _pause(self, failures: int) -> float:
        wait = min(self._first * 2.0 ** min(failures - 1, 16), self._longest)
        return wait * random.uniform(0.5, 1.0)  # noqa: S311 - no secret


def _failed(task: asyncio.Task[None]) -> bool:
    error = None if task.cancelled() else task.exception()
    if error is not None:
        log.error("part %s failed while it stopped", task.get_name(), exc_info=error)
    return error is not None
