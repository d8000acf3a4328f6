"""The rig: real processes around one store, each with a history, and the judge at the end."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import history
from evidence import Evidence, Row, Store
from history import Call, History
from judge import Violation, judge
from recorder import Recorded

from holdfast.bus.client import Bus
from holdfast.contracts import Backend
from holdfast.failpoints import VARIABLE
from holdfast.wiring import backend
from kit import until

HERE = Path(__file__).parent
CHANNEL, CONSUMER = "orders", "billing"


class Process:
    """A process that a test started, and may kill, stop and wait for."""

    def __init__(self, name: str, popen: subprocess.Popen[bytes]) -> None:
        self.name, self._popen = name, popen

    @property
    def code(self) -> int | None:
        """How it ended; None while it runs."""
        return self._popen.poll()

    def send(self, number: int) -> None:
        self._popen.send_signal(number)

    async def ended(self, patience: float = 20.0) -> int:
        """Wait for the end of it; answers how it ended."""

        async def over() -> bool:
            return self.code is not None

        await until(over, patience)
        return self._popen.wait()

    async def killed(self) -> None:
        """Wait until it has died by SIGKILL."""
        assert await self.ended() == -signal.SIGKILL, f"{self.name} ended otherwise; see its log"

    async def stopped_itself(self) -> None:
        """Wait until a failpoint has stopped it by SIGSTOP."""

        async def still() -> bool:
            pid, status = os.waitpid(self._popen.pid, os.WNOHANG | os.WUNTRACED)  # noqa: ASYNC222
            return bool(pid) and os.WIFSTOPPED(status)

        await until(still)

    async def continued(self) -> int:
        """Let it go on, past every further stop, to its end; answers how it ended."""

        async def over() -> bool:
            self.send(signal.SIGCONT)
            return self.code is not None

        await until(over)
        return self._popen.wait()

    async def stopped(self) -> None:
        """Ask it to stop, and see that it does so by itself."""
        self.send(signal.SIGTERM)
        # Death by the signal itself means that it had not begun: once it has, it handles the signal.
        ways = (0, -signal.SIGTERM)
        assert await self.ended() in ways, f"{self.name} did not stop cleanly; see its log"

    def kill(self) -> None:
        self._popen.kill()
        self._popen.wait()


class Rig:
    """One empty store, the histories of everybody who used it, and the processes that still run."""

    def __init__(self, store: Store, url: str, folder: Path) -> None:
        self.store, self.url, self.folder = store, url, folder
        self.processes: list[Process] = []
        self._histories: list[History] = []

    def start(self, script: str, failpoints: str = "", **spec: Any) -> Process:
        """Run a script of `processes/` with that specification and those failpoints."""
        name = f"{len(self.processes):02}-{script}"
        given = {"url": self.url, "history": str(self.folder / f"{name}.jsonl"), "channel": CHANNEL}
        path = os.pathsep.join(filter(None, [str(HERE), os.environ.get("PYTHONPATH")]))
        environment = os.environ | {VARIABLE: failpoints, "PYTHONPATH": path}
        with (self.folder / f"{name}.log").open("wb") as log:
            popen = subprocess.Popen(
                [sys.executable, HERE / "processes" / f"{script}.py", json.dumps(given | spec)],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self.processes.append(Process(name, popen))
        return self.processes[-1]

    def recorded(self, name: str, make: Callable[[str], Backend] = backend) -> Backend:
        """A backend on the store, in this process, with a history of its own."""
        watched: Any = Recorded(make(self.url), self.notes(name))
        opened: Backend = watched
        return opened

    def notes(self, name: str) -> History:
        """A history for somebody in this process."""
        self._histories.append(History(self.folder / f"{name}.jsonl"))
        return self._histories[-1]

    def bus(self, name: str, make: Callable[[str], Backend] = backend) -> Bus:
        """A bus over such a backend."""
        return Bus([self.recorded(name, make)])

    def calls(self, process: str = "*") -> list[Call]:
        """What everybody did, or one process."""
        return history.read(self.folder, process)

    async def evidence(self) -> Evidence:
        return await self.store.gather(self.url)

    async def rows(self) -> list[Row]:
        """Every job."""
        return (await self.evidence()).rows

    async def logged(self) -> list[str]:
        """The ids in the log."""
        return [event.id for event in (await self.evidence()).log]

    async def verdict(self, *, drained: bool = True) -> list[Violation]:
        """What the judge finds; an empty list is an acquittal."""
        return judge(self.calls(), await self.evidence(), drained=drained)

    async def broken(self, *, drained: bool = True) -> set[str]:
        """The names of the invariants that the judge finds broken."""
        return {violation.invariant for violation in await self.verdict(drained=drained)}

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
