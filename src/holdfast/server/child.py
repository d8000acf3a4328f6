"""Child parts: a command of ours in a process of its own, such as a Spark driver."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

from prometheus_client.core import Metric

from holdfast.bus.leash import GRACE, LEASH
from holdfast.model.errors import HoldfastError

log = logging.getLogger(__name__)

LONG_LOG = 16 << 20
TAIL, TAIL_BYTES, LONGEST_LINE = 15, 8 << 10, 300
LOOK = 1.0
_STOPPED = {0, -signal.SIGTERM, 128 + signal.SIGTERM}
"""It has drained, or had begun nothing that it could drain: Spark was still starting."""
Standing = Callable[[int], Awaitable[str]]
"""What the process of that number is doing."""


class ChildPart:
    """Runs `holdfast ARGUMENTS` for as long as the supervisor wants it, and never longer than we live.

    Its logs go into the folder `logs`, or where ours go.
    """

    def __init__(
        self,
        name: str,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        logs: Path | None = None,
        standing: Standing | None = None,
    ) -> None:
        self.name = name
        self._arguments, self._environment, self._logs = arguments, environment, logs
        self._standing = standing
        self._status = "starting"

    async def run(self) -> None:
        """Run the command; its end is a failure, unless we are told to stop: then it is told so too."""
        with self._open_log() as errors:
            begin = 0 if errors is None else errors.tell()
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "holdfast.cli",
                *self._arguments,
                env={**self._environment, LEASH: "stdin"},
                stdin=asyncio.subprocess.PIPE,  # never written to: the kernel closes it when we die
                stdout=asyncio.subprocess.DEVNULL,
                stderr=errors,
                start_new_session=True,  # Ctrl-C is for us: we tell the child when to stop
            )
        self._status = f"process {process.pid}"
        following = asyncio.create_task(self._follow(process.pid))
        try:
            code = await process.wait()
        except asyncio.CancelledError:
            following.cancel()
            await self._stop(process)
            raise
        finally:
            following.cancel()
        raise HoldfastError(f"holdfast {self._arguments[0]} ended with {code}: {self._why(begin)}")

    async def _follow(self, pid: int) -> None:
        """Keep the status up to date. A store that does not answer has no news."""
        while self._standing is not None:
            with contextlib.suppress(HoldfastError):
                self._status = f"{await self._standing(pid)}, process {pid}"
            await asyncio.sleep(LOOK)

    def _why(self, begin: int) -> str:
        """The last line that the child has logged since `begin`; the lines before it go into our own log."""
        if self._logs is None:
            return "its log is where this process's is"
        path = self._logs / f"{self.name}.log"
        with path.open("rb") as file:
            file.seek(max(begin, path.stat().st_size - TAIL_BYTES))
            lines = [line for line in file.read().decode(errors="replace").splitlines() if line.strip()]
        for line in lines[-TAIL:]:
            log.warning("%s: %s", path.name, line)
        return f"{lines[-1].strip()[:LONGEST_LINE]} (see {path})" if lines else f"{path} says nothing of it"

    @contextlib.contextmanager
    def _open_log(self) -> Iterator[IO[bytes] | None]:
        """The child's log, which goes on where it ended; a long one is put aside first."""
        if self._logs is None:
            yield None
            return
        self._logs.mkdir(parents=True, exist_ok=True)
        path = self._logs / f"{self.name}.log"
        if path.exists() and path.stat().st_size > LONG_LOG:
            path.replace(path.with_name(f"{path.name}.old"))
        with path.open("ab") as file:
            yield file

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
        if code not in _STOPPED:
            raise HoldfastError(f"holdfast {self._arguments[0]} ended with {code} when it was told to stop")

    def status(self) -> str:
        """What it does, and which process it is."""
        return self._status

    def metrics(self) -> Iterator[Metric]:
        """None here: a driver's own report is read where the drivers are."""
        yield from ()
