"""What one worker process tells the benchmark, through shared memory.

A count in a mapped file costs a worker next to nothing, asks nothing of the event loop or the store that
are being measured, and can be read at any time.
"""

from __future__ import annotations

import mmap
import time
from pathlib import Path

from .payload import sent_at

WORD = 8
READY, BEGAN, HANDLED, RELEASED, HEAD = 0, 1, 2, 3, 4


class Board:
    """Words of 64 bits: the four above, then one latency in nanoseconds per event where asked for."""

    def __init__(self, path: Path) -> None:
        with path.open("r+b") as file:
            self.words = memoryview(mmap.mmap(file.fileno(), 0)).cast("q")

    @classmethod
    def create(cls, path: Path, samples: int) -> Board:
        path.write_bytes(bytes(WORD * (HEAD + samples)))
        return cls(path)

    @property
    def ready(self) -> bool:
        return bool(self.words[READY])

    @property
    def began(self) -> int:
        """When the first event was handled, by `time.perf_counter_ns`; 0 before."""
        return self.words[BEGAN]

    @property
    def handled(self) -> int:
        return self.words[HANDLED]

    @property
    def latencies(self) -> list[int]:
        return self.words[HEAD : HEAD + self.handled].tolist()

    def mark_ready(self) -> None:
        self.words[READY] = 1

    def count(self, _: bytes | str) -> None:
        """The no-op handler of the throughput measures."""
        handled = self.words[HANDLED]
        if not handled:
            self.words[BEGAN] = time.perf_counter_ns()
        self.words[HANDLED] = handled + 1

    def release(self) -> None:
        """Let `hold` go on."""
        self.words[RELEASED] = 1

    def hold(self, payload: bytes | str) -> None:
        """As `count`, but the whole process waits in the first event until it is released."""
        self.count(payload)
        while not self.words[RELEASED]:
            time.sleep(0.001)

    def clock(self, payload: bytes | str) -> None:
        """The handler of the latency measure: time since the publish call."""
        taken = time.time_ns() - sent_at(payload)
        handled = self.words[HANDLED]
        if HEAD + handled < len(self.words):
            self.words[HEAD + handled] = taken
        self.words[HANDLED] = handled + 1
