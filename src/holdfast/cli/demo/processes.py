"""The demo's processes: workers and a driver, each with a log of its own."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from asyncio import wait_for
from asyncio.subprocess import DEVNULL, PIPE, Process, create_subprocess_exec
from collections.abc import Mapping
from types import TracebackType
from typing import IO, Self

import orjson

from holdfast.cli.demo.orders import CHANNEL
from holdfast.cli.output import say
from holdfast.model.errors import HoldfastError

_SHUTDOWN = 20.0
_TAIL = 15


class DemoProcesses:
    """Starts workers on one store and channel, and leaves none of them behind."""

    def __init__(self, url: str, channel: str) -> None:
        # In the environment, not on the command line: everybody can read that one.
        self._environment = os.environ | {"HOLDFAST_URL": url, CHANNEL: channel}
        self._all: dict[Process, IO[bytes]] = {}

    async def start_worker(self, app: str) -> Process:
        """Start a worker process for an app of the demo."""
        return await self.run(["worker", f"holdfast.cli.demo.workers:{app}"])

    async def run(self, command: list[str], environment: Mapping[str, str] | None = None) -> Process:
        """Start a command of ours."""
        return await self._start(["holdfast.cli", *command], DEVNULL, environment or {})

    async def start_paused_worker(self) -> Process:
        """Start the worker that will be paused."""
        return await self._start(["holdfast.cli.demo.workers"], PIPE, {})

    async def stop(self, worker: Process) -> int:
        """Send SIGTERM: it finishes what runs and releases the rest. Returns the exit code."""
        worker.send_signal(signal.SIGTERM)
        return await wait_for(worker.wait(), _SHUTDOWN)

    async def read_line(self, worker: Process) -> dict[str, int]:
        """The next line of a worker whose output we read."""
        line = await worker.stdout.readline() if worker.stdout is not None else b""
        if not line:
            await worker.wait()
            self.check(worker)
        told: dict[str, int] = orjson.loads(line)
        return told

    def check(self, worker: Process) -> None:
        """Raises `HoldfastError` where a worker has ended by itself."""
        if worker.returncode is not None:
            raise self.failure(worker, "worker")

    def failure(self, process: Process, what: str, instead: str = "") -> HoldfastError:
        """The error for a process that ended as it should not; the last lines of its log are printed."""
        log = self._all[process]
        log.seek(0)
        lines = log.read().decode(errors="replace").splitlines()[-_TAIL:]
        shown = "the last lines of its log stand above" if lines else "its log is empty"
        if lines:
            say("\n".join([f"the log of {what} {process.pid} ends with:", *(f"  {line}" for line in lines)]))
        return HoldfastError(f"{what} {process.pid} ended with {process.returncode}{instead}; {shown}")

    async def _start(self, module: list[str], stdout: int, environment: Mapping[str, str]) -> Process:
        log = tempfile.TemporaryFile()  # noqa: SIM115 - closed when all have ended
        worker = await create_subprocess_exec(
            sys.executable,
            "-m",
            *module,
            env={**self._environment, **environment},
            stdin=PIPE,
            stdout=stdout,
            stderr=log,
            start_new_session=True,  # Ctrl-C is for the demo, which ends its workers itself
        )
        self._all[worker] = log
        return worker

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for worker, log in self._all.items():
            if worker.returncode is None:
                worker.kill()
            await worker.wait()
            log.close()
