"""Processes of the rig: each a fork of one that has imported everything and done nothing, so that a thousand
of them can be killed at little cost."""

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
from holdfast.chaos import clock
from holdfast.chaos.coverage import count_hits, hits_of
from holdfast.chaos.history import History
from holdfast.model.errors import LeaseLost, LockLost, ObjectConflict, Outdated, Transient

T = TypeVar("T")
EXPECTED = (Transient, LockLost, LeaseLost, Outdated, ObjectConflict)
"""Errors that end a party while faults go on; anything else is a finding."""
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["holdfast.chaos.preload", "holdfast.chaos.preload_pipeline"])


async def until(condition: Callable[[], Awaitable[T]], patience: float = 20.0) -> T:
    """Wait until the condition answers something true, and answer that."""
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
    """A party at work, which may be killed, stopped and waited for."""

    def __init__(self, name: str, party: str, spec: dict[str, Any], points: str, log: Path) -> None:
        self.name, self._log = name, log
        self._process = FORKS.Process(target=_begin, args=(party, spec, points, str(log)), name=name)
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
        """Wait for the end of it; answers how it ended."""

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
        """Let it go on, past every further stop, to its end; answers how it ended."""

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


def _begin(party: str, spec: dict[str, Any], points: str, log: str) -> None:
    """The life of a party, in its own process."""
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
    module = importlib.import_module(f"holdfast.chaos.parties.{party}")
    clock.shift(timedelta(seconds=spec.get("shift", 0.0)))
    try:
        asyncio.run(module.main(spec))
    except EXPECTED as error:
        logging.exception("ended by what a fault may cause")
        Path(log).with_suffix(".ended").write_text(type(error).__name__)
        sys.exit(os.EX_TEMPFAIL)
