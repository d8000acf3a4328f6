"""The meter: the CPU time of a process and of everything that it starts, those that end among them.

Spark's Python daemon ignores the end of its workers, so the kernel adds their time to nobody's. Each process
is therefore looked at several times a second, and what it had used when it was last seen is kept: of each one
that ends at most one interval is missed.
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

INTERVAL = 0.2
_TICKS = os.sysconf("SC_CLK_TCK")


class Process(NamedTuple):
    """What tells one from another that gets its number later."""

    pid: int
    started: str


class Meter:
    """Measures for the length of a block."""

    def __init__(self, root: int) -> None:
        self._root = root
        self._used: dict[Process, float] = {}
        self._kinds: dict[Process, str] = {}
        self._live: set[Process] = set()
        self._stop, self._lock = threading.Event(), threading.Lock()
        self._thread = threading.Thread(target=self._run, name="meter", daemon=True)

    def __enter__(self) -> Meter:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()

    def seconds(self) -> Counter[str]:
        """CPU seconds so far, by what used them: `driver` is the process itself."""
        self._look()
        found: Counter[str] = Counter()
        with self._lock:
            for process, used in self._used.items():
                found[self._kinds[process]] += used  # type: ignore[assignment]  # a float will do
        return found

    @property
    def ended(self) -> int:
        """How many processes have ended: each may have used up to an interval that is not counted."""
        return len(self._used) - len(self._live)

    def _run(self) -> None:
        while not self._stop.wait(INTERVAL):
            self._look()

    def _look(self) -> None:
        with self._lock:
            there = dict(_processes())
            parents = {process.pid: parent for process, (parent, _) in there.items()}
            known = {process.pid for process in self._live} | {self._root}
            for process, (_, used) in there.items():
                if process in self._used or _descends(process.pid, parents, known):
                    self._used[process] = used
                    if self._kinds.get(process, "other") == "other":  # Java's launcher is a shell at first
                        self._kinds[process] = "driver" if process.pid == self._root else _kind(process.pid)
            self._live = self._used.keys() & there.keys()


def _processes() -> list[tuple[Process, tuple[int, float]]]:
    """All of this machine: parent, and the CPU time of its own."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        used = (int(fields[11]) + int(fields[12])) / _TICKS
        found.append((Process(int(stat.parent.name), fields[19]), (int(fields[1]), used)))
    return found


def _descends(pid: int, parents: dict[int, int], known: set[int]) -> bool:
    while pid not in known:
        if pid not in parents:
            return False
        pid = parents[pid]
    return True


def _kind(pid: int) -> str:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return "other"
    if words[0].endswith(b"java"):
        return "java"
    if b"-m" not in words:
        return "other"
    return "tasks" if b"pyspark.daemon" in words else "planner"
