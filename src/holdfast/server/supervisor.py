"""The supervisor: keeps services running, restarts what dies, and drains everything when told to stop."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol, runtime_checkable

from prometheus_client.core import Metric

from holdfast.model.backoff import backoff_seconds

log = logging.getLogger(__name__)

FIRST, LONGEST = 1.0, 60.0
GRACE = 10.0


class Service(Protocol):
    """Something that runs for as long as the process does. Metrics, logs and `/readyz` call it a part."""

    name: str

    async def run(self) -> None:
        """Work until cancelled; then finish what cannot be left as it is, and end.

        Returning or raising before that is a failure: the service is restarted.
        """

    def status(self) -> str:
        """What it is doing, in a few words that change only when there is news."""


@runtime_checkable
class Measured(Protocol):
    """A service that counts something."""

    def metrics(self) -> Iterable[Metric]:
        """What it has counted so far."""


class Phase(StrEnum):
    """Where a part is."""

    STARTING = "starting"
    RUNNING = "running"
    RESTARTING = "restarting"
    STOPPED = "stopped"


@dataclass(slots=True)
class Supervised:
    """A service under supervision."""

    service: Service
    phase: Phase = Phase.STARTING
    restarts: int = 0
    reason: str = ""

    def status(self) -> str:
        """One line about it."""
        return self.service.status() if self.phase is Phase.RUNNING else self.reason


class Supervisor:
    """Runs services. One that dies is restarted after a pause that doubles while it keeps dying."""

    def __init__(self, *, first: float = FIRST, longest: float = LONGEST) -> None:
        self.services: list[Supervised] = []
        self.stopping = False
        self.on_stop: list[Callable[[], None]] = []
        """Called when `stopping` has become true: for those who wait and should wait no longer."""
        self._first, self._longest = first, longest
        self._grace = GRACE

    def add(self, service: Service, grace: float = GRACE) -> None:
        """Add a service; it starts with `run`, and gets `grace` seconds to finish when all is drained."""
        self.services.append(Supervised(service))
        self._grace = max(self._grace, grace)

    async def run(self, stop: asyncio.Event, grace: float | None = None) -> list[str]:
        """Run everything until `stop` is set, then drain. Returns which services did not end cleanly."""
        tasks = [asyncio.create_task(self._supervise(each), name=each.service.name) for each in self.services]
        try:
            await stop.wait()
        finally:
            self.stopping = True
            for callback in self.on_stop:
                callback()
            for task in tasks:
                task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=self._grace if grace is None else grace)
        return [task.get_name() for task in tasks if not task.done() or _failed(task)]

    async def _supervise(self, supervised: Supervised) -> None:
        failures = 0
        try:
            while True:
                supervised.phase, began = Phase.RUNNING, time.monotonic()
                supervised.reason = await self._run_once(supervised.service)
                if self.stopping:
                    return
                failures = 1 if time.monotonic() - began > self._longest else failures + 1
                supervised.phase, supervised.restarts = Phase.RESTARTING, supervised.restarts + 1
                await asyncio.sleep(backoff_seconds(failures, self._first, self._longest))
        finally:
            supervised.phase, supervised.reason = Phase.STOPPED, "stopped"

    async def _run_once(self, service: Service) -> str:
        """Run a service until it fails; returns why. A cancellation that is not ours is a failure too."""
        try:
            await service.run()
        except asyncio.CancelledError:
            reason = "was cancelled"
        except Exception as error:  # whatever it is, the service is started again
            if self.stopping:
                raise
            log.exception("part %s failed", service.name)
            reason = f"{type(error).__name__}: {error}"
        else:
            reason = "ended"
        if not self.stopping:
            log.warning("part %s is restarted: %s", service.name, reason)
        return reason


def _failed(task: asyncio.Task[None]) -> bool:
    error = None if task.cancelled() else task.exception()
    if error is not None:
        log.error("part %s failed while it stopped", task.get_name(), exc_info=error)
    return error is not None
