"""The worker processes of one measure: started, watched, and stopped with it."""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from .board import Board

ROOT = Path(__file__).resolve().parent.parent
CALM = 0.5
"""Seconds between the moment that every worker is loaded and their start."""
PATIENCE = 30.0
"""Seconds without any progress after which a measure has failed."""


class WorkerError(Exception):
    """A worker process died, or nothing moved any more."""


@dataclass
class Worker:
    process: asyncio.subprocess.Process
    board: Board
    errors: Path

    def check(self) -> None:
        if self.process.returncode is not None:
            tail = "\n".join(self.errors.read_text().splitlines()[-4:])
            raise WorkerError(f"worker ended with code {self.process.returncode}:\n{tail}")

    def begin(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(b"!")

    async def stop(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            await asyncio.wait_for(self.process.wait(), PATIENCE)
        except TimeoutError:
            self.process.kill()
            await self.process.wait()


@dataclass
class Crew:
    workers: list[Worker]

    @property
    def began(self) -> int:
        """When the first event of all was handled, by `time.perf_counter_ns`."""
        return min(worker.board.began for worker in self.workers if worker.board.began)

    @property
    def handled(self) -> int:
        return sum(worker.board.handled for worker in self.workers)

    @property
    def latencies(self) -> list[int]:
        return [taken for worker in self.workers for taken in worker.board.latencies]

    async def begin(self) -> None:
        """Let the workers begin together, once all of them are loaded."""

        async def loaded() -> bool:
            return all(worker.board.ready for worker in self.workers)

        await self.until(loaded, pause=0.05)
        await asyncio.sleep(CALM)
        for worker in self.workers:
            worker.begin()

    def release(self) -> None:
        """Let workers go on that hold their first event."""
        for worker in self.workers:
            worker.board.release()

    async def until(self, done: Callable[[], Awaitable[bool]], pause: float) -> None:
        """Wait for `done`, as long as the workers live and handle something now and then."""
        loop = asyncio.get_running_loop()
        seen, since = self.handled, loop.time()
        while not await done():
            for worker in self.workers:
                worker.check()
            if self.handled != seen:
                seen, since = self.handled, loop.time()
            if loop.time() - since > PATIENCE:
                raise WorkerError(f"no progress for {PATIENCE:.0f} s after {seen} events")
            await asyncio.sleep(pause)

    async def until_handled(self, events: int, pause: float) -> None:
        async def enough() -> bool:
            return self.handled >= events

        await self.until(enough, pause)


async def start(folder: Path, number: int, target: str, url: str, samples: int, held: bool) -> Worker:
    board, errors = folder / f"{number}.board", folder / f"{number}.err"
    shared = Board.create(board, samples)
    handler = "clock" if samples else "hold" if held else "count"
    with errors.open("wb") as stderr:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "bench.worker", target, url, str(board), handler),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=stderr,
            cwd=ROOT,
        )
    return Worker(process, shared, errors)


@asynccontextmanager
async def crew(
    target: str, url: str, processes: int, samples: int = 0, held: bool = False
) -> AsyncIterator[Crew]:
    """Worker processes for the time of the block, which wait for `begin`.

    `samples` asks for that many latencies from each; `held` ones wait in their first event until `release`.
    """
    workers: list[Worker] = []
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        try:
            for number in range(processes):
                worker = await start(Path(folder), number, target, url, samples, held)
                workers.append(worker)
            yield Crew(workers)
        finally:
            await asyncio.gather(*(worker.stop() for worker in workers))
