"""Child parts: a command of ours in a process of its own, such as a Spark driver."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Iterator, Mapping, Sequence

from prometheus_client.core import Metric

from holdfast.model.errors import HoldfastError

GRACE = 120.0
"""How long a child gets to write what it holds, once it is told to stop."""


class ChildPart:
    """Runs `holdfast ARGUMENTS` for as long as the supervisor wants it. Its logs go where ours go."""

    def __init__(self, name: str, arguments: Sequence[str], environment: Mapping[str, str]) -> None:
        self.name = name
        self._arguments, self._environment = arguments, environment
        self._status = "starting"

    async def run(self) -> None:
        """Run the command; its end is a failure, unless we are told to stop: then it is told so too."""
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "holdfast.cli",
            *self._arguments,
            env=dict(self._environment),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for us: we tell the child when to stop
        )
        self._status = f"process {process.pid}"
        try:
            code = await process.wait()
        except asyncio.CancelledError:
            await self._stop(process)
            raise
        raise HoldfastError(f"holdfast {self._arguments[0]} ended with {code}: see its log above")

    async def _stop(self, process: asyncio.subprocess.Process) -> None:
        self._status = "stopping"
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        try:
            code = await asyncio.wait_for(process.wait(), GRACE)
        except (TimeoutError, asyncio.CancelledError):
            process.kill()
            await process.wait()
            raise
        if code:
            raise HoldfastError(f"holdfast {self._arguments[0]} ended with {code} when it was told to stop")

    def status(self) -> str:
        """Which process it is."""
        return self._status

    def metrics(self) -> Iterator[Metric]:
        """None here: a driver has a port of its own."""
        yield from ()
