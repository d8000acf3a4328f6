"""Processes: those of a run in their places, each with a successor, and the workload they have."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from holdfast.bus.app import App
from holdfast.bus.client import Bus
from holdfast.model.errors import InvalidInput
from holdfast_chaos.archive_store import ArchiveStore
from holdfast_chaos.report import Summary
from holdfast_chaos.rig import Process, Rig
from holdfast_chaos.roles import CHANNEL, POLICY, Role
from holdfast_chaos.roles.consumers import CONSUMERS, users_app
from holdfast_chaos.schedule import ProcessFault

_LIFE, _AFTER, _END, _TRIES, _BREATH = 12.0, 2.0, 120.0, 8, 0.1
_LEASE = 121
"""Seconds that the clock of an ingest is past that of the one before it, which held leases of two minutes."""


class Workload(Protocol):
    """Who consumes, and what is published to them."""

    @property
    def consumers(self) -> list[tuple[str, str]]:
        """Channels and consumers."""

    def published(self, place: int) -> dict[str, Any]:
        """What a producer in that place must know."""

    async def create(self, bus: Bus) -> None:
        """Create the consumers."""


class OwnWorkload:
    """The rig's own."""

    def __init__(self, policies: dict[str, dict[str, Any]] | None = None) -> None:
        self._policies = policies or {name: POLICY | {"ordered": ordered} for name, ordered in CONSUMERS}

    @property
    def consumers(self) -> list[tuple[str, str]]:
        return [(CHANNEL, name) for name in self._policies]

    def published(self, place: int) -> dict[str, Any]:
        return {}

    async def create(self, bus: Bus) -> None:
        for name, policy in self._policies.items():
            await bus.subscribe(CHANNEL, name, **policy)


@dataclass(frozen=True, slots=True)
class UserWorkload:
    """A user's handlers, with samples of what they get."""

    app: App
    samples: Path

    @property
    def consumers(self) -> list[tuple[str, str]]:
        return [(handler.channel, handler.consumer) for handler in self.app.handlers]

    def published(self, place: int) -> dict[str, Any]:
        channels = sorted({channel for channel, _ in self.consumers})
        return {"channel": channels[place % len(channels)], "samples": str(self.samples)}

    async def create(self, bus: Bus) -> None:
        for each in self.app.handlers:
            await bus.ensure(each.channel, each.consumer, start=each.start, **each.policy)


def workload_of(app: str | None, samples: Path | None) -> Workload:
    """The rig's own workload, or that of an app, which needs samples. Raises `InvalidInput`."""
    if app is None:
        return OwnWorkload()
    if samples is None or not samples.is_file() or not samples.read_bytes().strip():
        raise InvalidInput(
            f"--app needs --events, a file with the data of one event in each line; got {samples}"
        )
    return UserWorkload(users_app(app), samples)


class Processes:
    """All processes of a run on one store."""

    def __init__(
        self,
        rig: Rig,
        workload: Workload,
        archive_store: ArchiveStore,
        summary: Summary,
        seed: int,
        app: str | None,
    ) -> None:
        self._rig, self._workload, self._summary, self._seed, self._app = rig, workload, summary, seed, app
        self.archive_store, self.pipeline = archive_store, rig.folder / "pipeline"
        self.pipeline.mkdir(exist_ok=True)
        self._enough, self._drained = rig.folder / "enough", rig.folder / "drained"
        self._numbers = itertools.count(1)
        self._ahead = itertools.count(_LEASE, _LEASE)
        self._before: dict[str, list[str]] = defaultdict(list)

    def finish(self) -> None:
        """Let no process begin anything new from now on."""
        self._enough.touch()

    def end(self) -> None:
        """Let those end that only work on what is there."""
        self._drained.touch()

    async def run_with(self, role: Role, place: int, fault: ProcessFault) -> None:
        """Start a process in a place, bring its fault, and count how it ended."""
        process = self.start(role, place, fault)
        self._count(role, fault, await self._outlive(process, fault), process)

    async def run_to_end(
        self, role: Role, place: int, told: asyncio.Event | None = None, patience: float = _END
    ) -> None:
        """Run a process to its end, or until told to stop. One that ends by a late fault begins again."""
        for _ in range(_TRIES):
            process = self.start(role, place)
            while told is not None and process.code is None and not told.is_set():
                await asyncio.sleep(_BREATH)
            if told is not None:
                process.send(signal.SIGTERM)
            if not await _ends(process, patience):
                process.kill()
                self._summary.findings.append(f"{process.name} does not end: {process.said}")
                return
            if (code := await process.ended()) in (0, -signal.SIGTERM):
                return
            if code != os.EX_TEMPFAIL:
                break
        self._summary.findings.append(f"{process.name} ended badly: {process.said}")

    def start(self, role: Role, place: int, fault: ProcessFault | None = None, **more: Any) -> Process:
        """Start a process in a place. Its fault, apart from failpoints, is for the caller to bring."""
        name = f"{next(self._numbers):05}-{role.name}"
        who = f"{role.name}-{place}"
        ends = {"until": str(self._enough), "drained": str(self._drained)}
        spec: dict[str, Any] = {"channel": CHANNEL, "prefix": name, **ends, **role.spec}
        spec |= self._own(role, place, who) | more
        if fault is not None and fault.noise:
            spec["noise"] = f"{self._seed} {name}"
        if fault is not None and fault.shift:
            spec["shift"] = fault.shift
        self._before[who].append(str(self._rig.folder / f"{name}.jsonl"))
        return self._rig.start(role.program, fault.failpoints if fault else "", name, **spec)

    def _own(self, role: Role, place: int, who: str) -> dict[str, Any]:
        """What only some roles need to know."""
        match role.name:
            case "producer" | "spooler" | "bulk-producer":
                spool = {"spool": str(self._rig.folder / "spool")} if role.name == "spooler" else {}
                recent = {"recent": str(self._rig.folder / f"{who}.recent")} if "bulk" in who else {}
                return {
                    "before": list(self._before[who]),
                    **spool,
                    **recent,
                    **self._workload.published(place),
                }
            case "operator" | "poller":
                return {"consumers": self._workload.consumers}
            case "live-operator":
                own = [name for _, name in self._workload.consumers][place :: role.count]
                return {"own": own, "recent": str(self._rig.folder / "*.recent")}
            case "consumer" if self._app is not None:
                return {"app": self._app}
            case "sweeper":
                return {"owner": f"sweeper-{next(self._numbers)}"}
            case "archiver":
                return {"folder": self.archive_store.url, "environment": self.archive_store.environment}
            case "ingester":
                return {"folder": str(self.pipeline), "kind": "duckdb", "ahead": next(self._ahead)}
        return {}

    async def _outlive(self, process: Process, fault: ProcessFault) -> int:
        """Bring a process its fault. Returns how it ended."""
        limit = fault.after if fault.kind in ("moment", "pause") else _LIFE
        if await _ends(process, limit):
            return await process.ended()
        if fault.kind == "pause":
            process.send(signal.SIGSTOP)
            await _ends(process, fault.length)
            process.send(signal.SIGCONT)
            await _ends(process, _AFTER)
        if fault.kind != "moment":
            process.send(signal.SIGTERM)
            if await _ends(process, _LIFE):
                return await process.ended()
        process.kill()
        return await process.ended()

    def _count(self, role: Role, fault: ProcessFault, code: int, process: Process) -> None:
        summary = self._summary
        summary.shifted += fault.shift != 0
        summary.noisy += fault.noise
        summary.pauses += fault.kind == "pause"
        self._rig.processes.remove(process)
        if code == -signal.SIGKILL and fault.kind == "point" and process.hits[fault.point] > fault.skip:
            summary.kills[fault.point] += 1
        elif code == -signal.SIGKILL:
            summary.moments[role.name] += 1
        elif code in (0, -signal.SIGTERM):
            summary.survived += 1
        elif code == os.EX_TEMPFAIL:
            summary.ended[process.gave_up] += 1
        else:
            summary.findings.append(f"{process.name} ended with {code}: {process.said}")


async def _ends(process: Process, within: float) -> bool:
    with suppress(TimeoutError):
        await process.ended(within)
    return process.code is not None
