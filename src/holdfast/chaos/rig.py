"""The rig: real processes around one store, each with a history, and the judge at the end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from holdfast.bus.client import Bus
from holdfast.chaos import history
from holdfast.chaos.evidence import Evidence, Row, Store
from holdfast.chaos.history import Call, History
from holdfast.chaos.judge import Violation, judge, judge_undisturbed
from holdfast.chaos.process import Process, until
from holdfast.chaos.recorder import Recorded
from holdfast.contracts import Backend
from holdfast.wiring import backend

CHANNEL, CONSUMER = "orders", "billing"


class Rig:
    """One empty store, the histories of everybody who used it, and the processes that still run."""

    def __init__(self, store: Store, url: str, folder: Path, *, way: str | None = None) -> None:
        self.store, self.url, self.folder = store, url, folder
        self.way = way or url
        """The URL by which the processes reach the store; another one where something stands in between."""
        self.processes: list[Process] = []
        self._histories: list[History] = []

    def start(self, party: str, failpoints: str = "", name: str = "", **spec: Any) -> Process:
        """Let a party work, with that specification and those failpoints."""
        name = name or f"{len(self.processes):02}-{party}"
        given = {"url": self.way, "history": str(self.folder / f"{name}.jsonl"), "channel": CHANNEL}
        process = Process(name, party, given | spec, failpoints, self.folder / f"{name}.log")
        self.processes.append(process)
        return process

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

    async def verdict(self, *, drained: bool = True, undisturbed: bool = False) -> list[Violation]:
        """What the judge finds; an empty list is an acquittal. `undisturbed`: there was no fault at all."""
        calls, store = self.calls(), await self.evidence()
        return judge(calls, store, drained=drained) + (judge_undisturbed(calls, store) if undisturbed else [])

    async def broken(self, *, drained: bool = True, undisturbed: bool = False) -> set[str]:
        """The names of the invariants that the judge finds broken."""
        found = await self.verdict(drained=drained, undisturbed=undisturbed)
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
