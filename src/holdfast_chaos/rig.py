"""The rig: real processes around one store, each with a history, and the checks at the end.

Each process is a fork of one that has imported everything and done nothing, so that a thousand of them can be
killed at little cost.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import multiprocessing
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

from holdfast import failpoints
from holdfast.bus.client import Bus
from holdfast.contracts import Backend
from holdfast.model.errors import LeaseLost, LockLost, ObjectConflict, Outdated, Transient
from holdfast.wiring import backend
from holdfast_chaos import clock, history
from holdfast_chaos.checks import Violation, check_faultless, check_history
from holdfast_chaos.final_state import FinalState, JobState, ServerUnderTest
from holdfast_chaos.history import Call, History, count_hits, hits_of
from holdfast_chaos.recorder import recorded
from holdfast_chaos.roles import PROGRAMS

T = TypeVar("T")
CHANNEL, CONSUMER = "orders", "billing"
EXPECTED = (Transient, LockLost, LeaseLost, Outdated, ObjectConflict)
"""Errors that end a process while faults go on; anything else is a finding."""
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["holdfast_chaos.preload"])


async def until(condition: Callable[[], Awaitable[T]], patience: float = 20.0) -> T:
    """Wait until the condition returns something true, and return that. Raises `TimeoutError`."""
    deadline = time.monotonic() + patience
    while not (answer := await condition()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"it did not happen within {patience:g} s")
        await asyncio.sleep(0.01)
    return answer


class Warnings(logging.Handler):
    """Notes what a process logs as a warning or worse."""

    def __init__(self, notes: History) -> None:
        super().__init__(logging.WARNING)
        self._notes = notes

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        message = record.getMessage() + (f": {type(error).__name__}: {error}" if error else "")
        self._notes.happened("logged", {"level": record.levelname, "message": message})


class Process:
    """A process of the rig, which may be killed, stopped and waited for."""

    def __init__(self, name: str, program: str, spec: dict[str, Any], points: str, log: Path) -> None:
        self.name, self._log = name, log
        self._process = FORKS.Process(target=_begin, args=(program, spec, points, str(log)), name=name)
        self._process.start()

    @property
    def code(self) -> int | None:
        """How it ended; None while it runs."""
        return self._process.exitcode

    def send(self, number: int) -> None:
        if self._process.pid is not None and self.code is None:
            with suppress(ProcessLookupError):  # it may end at this very moment
                os.kill(self._process.pid, number)

    async def ended(self, patience: float = 20.0) -> int:
        """Wait for its end. Returns how it ended."""

        async def over() -> bool:
            return self.code is not None

        await until(over, patience)
        self._process.join()
        return self._process.exitcode or 0

    async def killed(self) -> None:
        """Wait until it has died by SIGKILL."""
        self._expect(await self.ended(), -signal.SIGKILL)

    async def stopped_itself(self) -> None:
        """Wait until a failpoint has stopped it by SIGSTOP."""

        async def still() -> bool:
            return self._state() == "T"

        await until(still)

    async def continued(self) -> int:
        """Let it go on, past every further stop, to its end. Returns how it ended."""

        async def over() -> bool:
            self.send(signal.SIGCONT)
            return self.code is not None

        await until(over)
        return await self.ended()

    async def stopped(self, patience: float = 20.0) -> None:
        """Ask it to stop, and see that it does so by itself."""
        self.send(signal.SIGTERM)
        # Death by the signal itself means that it had not begun: once it has, it handles the signal.
        self._expect(await self.ended(patience), 0, -signal.SIGTERM)

    def kill(self) -> None:
        self._process.kill()
        self._process.join()

    @property
    def said(self) -> str:
        """The end of what it wrote."""
        return self._log.read_text(errors="replace")[-2000:] if self._log.exists() else ""

    @property
    def gave_up(self) -> str:
        """The error that a fault may cause and that ended it."""
        return self._log.with_suffix(".ended").read_text()

    @property
    def hits(self) -> Counter[str]:
        """How often it passed which failpoint."""
        return hits_of(self._log.with_suffix(".hits"))

    @property
    def memory(self) -> int:
        """MiB of it that are resident; 0 once it is gone."""
        try:
            pages = int(Path(f"/proc/{self._process.pid}/statm").read_text().split()[1])
        except (OSError, IndexError):
            return 0
        return pages * os.sysconf("SC_PAGE_SIZE") >> 20

    def _state(self) -> str:
        """What the kernel says that it does: R, S, T for stopped, …"""
        text = Path(f"/proc/{self._process.pid}/stat").read_text()
        return text.rpartition(")")[2].split()[0]

    def _expect(self, code: int, *ways: int) -> None:
        if code not in ways:
            raise RuntimeError(f"{self.name} ended with {code}, not with {ways}:\n{self.said}")


def _begin(program: str, spec: dict[str, Any], points: str, log: str) -> None:
    """Run a program, in its own process."""
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    for descriptor in (sys.stdout.fileno(), sys.stderr.fileno()):
        os.dup2(output, descriptor)
    os.environ.update(spec.pop("environment", {}))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # told to stop before there was anything to drain
    logging.basicConfig(level=logging.INFO)
    if spec.pop("watch_log", False):
        logging.getLogger().addHandler(Warnings(History(Path(log).with_name(f"{Path(log).stem}-log.jsonl"))))
    failpoints.activate_from({failpoints.VARIABLE: points})
    count_hits(Path(log).with_suffix(".hits"))
    module = importlib.import_module(f"holdfast_chaos.{PROGRAMS[program]}")
    clock.shift(timedelta(seconds=spec.get("shift", 0.0)))
    try:
        asyncio.run(getattr(module, program)(spec))
    except EXPECTED as error:
        logging.exception("ended by what a fault may cause")
        Path(log).with_suffix(".ended").write_text(type(error).__name__)
        sys.exit(os.EX_TEMPFAIL)


class Rig:
    """One empty store, the histories of everybody who used it, and the processes that still run."""

    def __init__(
        self, store: ServerUnderTest, url: str, folder: Path, *, process_url: str | None = None
    ) -> None:
        self.store, self.url, self.folder = store, url, folder
        self.process_url = process_url or url
        """The URL by which the processes reach the store; another one if there is a proxy in between."""
        self.processes: list[Process] = []
        self._histories: list[History] = []

    def start(self, program: str, failpoints: str = "", name: str = "", **spec: Any) -> Process:
        """Start a process that runs a program, with that specification and those failpoints."""
        name = name or f"{len(self.processes):02}-{program}"
        given = {"url": self.process_url, "history": str(self.folder / f"{name}.jsonl"), "channel": CHANNEL}
        process = Process(name, program, given | spec, failpoints, self.folder / f"{name}.log")
        self.processes.append(process)
        return process

    def recorded(self, name: str, make: Callable[[str], Backend] = backend) -> Backend:
        """A backend on the store, in this process, with a history of its own."""
        return recorded(make(self.url), self.notes(name))

    def notes(self, name: str) -> History:
        """A history for a caller in this process."""
        self._histories.append(History(self.folder / f"{name}.jsonl"))
        return self._histories[-1]

    def bus(self, name: str, make: Callable[[str], Backend] = backend) -> Bus:
        """A bus over such a backend."""
        return Bus([self.recorded(name, make)])

    def calls(self, process: str = "*") -> list[Call]:
        """What all processes did, or one of them."""
        return history.read(self.folder, process)

    async def final_state(self) -> FinalState:
        """Everything that is in the store now."""
        return await self.store.final_state(self.url)

    async def rows(self) -> list[JobState]:
        """Every job."""
        return (await self.final_state()).rows

    async def logged(self) -> list[str]:
        """The ids in the log."""
        return [event.id for event in (await self.final_state()).log]

    async def violations(self, *, drained: bool = True, faultless: bool = False) -> list[Violation]:
        """What the checks find: nothing, if all is well. `faultless`: there was no fault at all."""
        calls, state = self.calls(), await self.final_state()
        found = check_history(calls, state, drained=drained)
        return found + (check_faultless(calls, state) if faultless else [])

    async def broken(self, *, drained: bool = True, faultless: bool = False) -> set[str]:
        """The names of the invariants that the checks find broken."""
        found = await self.violations(drained=drained, faultless=faultless)
        return {violation.invariant for violation in found}

    async def drained(self, patience: float = 30.0) -> None:
        """Wait until there are jobs, and none of them is live."""

        async def empty() -> bool:
            await asyncio.sleep(0.05)  # there may be much to read
            rows = await self.rows()
            return bool(rows) and not any(row.live for row in rows)

        await until(empty, patience)

    def close(self) -> None:
        for process in self.processes:
            process.kill()
        for each in self._histories:
            each.close()
