"""A run on one store: all roles at work, with faults until there were enough of them, or without any.

After a run with faults everything heals and drains. In a run without faults a process that ends before it
should, or ends badly, is a finding.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import os
import signal
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from holdfast_chaos import schedule
from holdfast_chaos.archive_store import ArchiveStore
from holdfast_chaos.nemesis import Nemesis
from holdfast_chaos.processes import OwnWorkload, Processes, Workload, workload_of
from holdfast_chaos.report import Summary
from holdfast_chaos.rig import Process, Rig, until
from holdfast_chaos.roles import CHANNEL, FAULTLESS_POLICIES, FAULTLESS_ROLES, PACE, ROLES, Role

_BREATH, _STOP_EVERY = 0.1, 12.0
_DRAIN, _PATIENCE, _CATCHING_UP = 120.0, 300.0, 900.0
_WORKERS = frozenset({"consumer", "poller", "heartbeat"})
"""They go on until nothing is left."""
_FOLLOWERS = frozenset({"archiver", "ingester"})
"""They make no notes, and may be far behind when the last producer has ended."""
_UNNOTED = _FOLLOWERS | {"heartbeat"}
"""Their calls are in no history."""
_LAST = frozenset({"archiver", "ingester", "sweeper"})
"""They go once more to the end of what the last producer has published."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be done to a store. It is over with the first of time and, where given, both counts."""

    seed: int
    faults: frozenset[str]
    """Without any, more must hold: see `FaultlessRun`."""
    seconds: float
    kills: int | None = None
    server_kills: int | None = None
    pipeline: bool = True
    app: str | None = None
    """The handlers of a user, as `module:name`, instead of the rig's own."""
    samples: Path | None = None
    """What is published to them: JSON lines of data."""


class FaultRun:
    """A run with faults: `run` does everything but the checks."""

    def __init__(
        self, rig: Rig, nemesis: Nemesis, archive_store: ArchiveStore, plan: Plan, summary: Summary
    ) -> None:
        self.rig, self.summary, self._nemesis, self._plan = rig, summary, nemesis, plan
        self._workload = workload_of(plan.app, plan.samples)
        self.processes = Processes(rig, self._workload, archive_store, summary, plan.seed, plan.app)
        self._seed, self._over = str(plan.seed), asyncio.Event()
        roles = [role for role in ROLES if plan.pipeline or not role.pipeline]
        self._places = [(role, place) for role in roles for place in range(role.count)]

    async def run(self) -> None:
        """Bring faults until it is enough, then heal and drain."""
        began = time.monotonic()
        await _create_consumers(self.rig, self._workload, self._plan)
        async with asyncio.TaskGroup() as group:
            for role, place in self._places:
                group.create_task(self._keep(role, place))
            group.create_task(self._inject())
            group.create_task(self._measure())
            await self._wait(began)
            self._over.set()
        await self._nemesis.heal()
        await self._end()
        self.summary.seconds = time.monotonic() - began

    async def _wait(self, began: float) -> None:
        while time.monotonic() - began < self._plan.seconds and not self._reached():
            await asyncio.sleep(_BREATH)

    def _reached(self) -> bool:
        kills, servers = self._plan.kills, self._plan.server_kills
        if kills is None and servers is None:
            return False
        return self.summary.killed >= (kills or 0) and self.summary.server_kills >= (servers or 0)

    async def _keep(self, role: Role, place: int) -> None:
        """Keep a process in this place at every moment."""
        for number in itertools.count(place, role.count):
            if self._over.is_set():
                return
            fault = schedule.process_fault(self._seed, role, self.summary.store, number, self._plan.faults)
            await self.processes.run_with(role, place, fault)

    async def _inject(self) -> None:
        for number in itertools.count():
            fault = schedule.server_fault(self._seed, self.summary.store, number, self._plan.faults)
            if fault is None or await self._rest(fault.gap):
                return
            await self._nemesis.inject(fault)
            self.summary.server_faults[fault.kind] += 1

    async def _rest(self, seconds: float) -> bool:
        """Wait. Returns whether it is over meanwhile."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._over.wait(), seconds)
        return self._over.is_set()

    async def _measure(self) -> None:
        """Note the most memory that a process of each role has."""
        while not await self._rest(0.5):
            for process in list(self.rig.processes):
                role = process.name.partition("-")[2]
                self.summary.memory[role] = max(self.summary.memory.get(role, 0), process.memory)

    async def _end(self) -> None:
        """Nobody is killed any more: producers publish what is open, workers drain, the pipeline follows."""
        self.processes.finish()
        drained = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            for role, place in self._places:
                if role.name == "consumer":
                    group.create_task(self.processes.run_to_end(role, place, drained))
            await self._all("producer", "spooler", "operator", "late-subscriber")
            await self._all("tasks", "sweeper")
            await until_drained(self.rig)
            drained.set()
        await self._all("archiver", "ingester")
        await self._all("sweeper")

    async def _all(self, *names: str) -> None:
        await asyncio.gather(
            *(self.processes.run_to_end(*each) for each in self._places if each[0].name in names)
        )


async def _create_consumers(rig: Rig, workload: Workload, plan: Plan) -> None:
    """Make every reader of the log known before the first event: what nobody needs may be trimmed."""
    async with rig.bus("setup") as bus:
        await workload.create(bus)
        for name in ("archiver", "ingest") if plan.pipeline else ():
            await bus.partitions.all[0].backend.cursors.attach(CHANNEL, name)


async def until_drained(rig: Rig) -> None:
    """Wait until nothing is live, or for long enough without progress: the checks name what is left then."""
    bus = rig.bus("drain")
    async with bus:
        [partition] = bus.partitions.all
        fewest, since = math.inf, time.monotonic()
        while time.monotonic() - since < _DRAIN:
            live = sum(sum(each.live.values()) for each in await partition.backend.channels.backlogs(1))
            if not live:
                return
            if live < fewest:
                fewest, since = live, time.monotonic()
            await asyncio.sleep(_BREATH)


class FaultlessRun:
    """A run without faults, with operators at work: `run` does everything but the checks."""

    def __init__(self, rig: Rig, archive_store: ArchiveStore, plan: Plan, summary: Summary) -> None:
        self.rig, self.summary, self._plan = rig, summary, plan
        self._workload = OwnWorkload(FAULTLESS_POLICIES)
        self.processes = Processes(rig, self._workload, archive_store, summary, plan.seed, None)
        pace = PACE.get(summary.store, {})
        self._roles = [
            replace(role, spec=role.spec | pace.get(role.name, {}))
            for role in FAULTLESS_ROLES
            if plan.pipeline or not role.pipeline
        ]
        self._places: list[tuple[Role, int, Process]] = []

    async def run(self) -> None:
        """Let them work for their time, then end what was begun, and drain."""
        began = time.monotonic()
        await _create_consumers(self.rig, self._workload, self._plan)
        self._places = [self._started(role, place) for role in self._roles for place in range(role.count)]
        await self._all_at_work()
        await self._work()
        self.processes.finish()
        await asyncio.gather(
            *(self._ends(each, role) for role, _, each in self._places if role.name not in _WORKERS)
        )
        await until_drained(self.rig)
        self.processes.end()
        await asyncio.gather(*(self._stops(*each) for each in self._places if each[0].name in _WORKERS))
        for role in (role for role in self._roles if role.name in _LAST):
            await self.processes.run_to_end(role, 0, patience=_CATCHING_UP)
        self.summary.seconds = time.monotonic() - began

    def _started(self, role: Role, place: int) -> tuple[Role, int, Process]:
        return role, place, self.processes.start(role, place, watch_log=True)

    async def _all_at_work(self) -> None:
        """Their time begins when all of them have begun, however long that takes."""

        async def noted() -> bool:
            noting = [each.name for role, _, each in self._places if role.name not in _FOLLOWERS]
            files = [self.rig.folder / f"{name}.jsonl" for name in noting]
            return all(file.exists() and file.stat().st_size for file in files) or self._ended()

        try:
            await until(noted, _PATIENCE)
        except TimeoutError:
            self.summary.findings.append(f"after {_PATIENCE:g} s somebody had not begun")

    def _ended(self) -> bool:
        """Whether a process ended that should not. One that gave up on a store that did not answer has a
        successor: the call that was noted tells whether the machine was too slow for an answer."""
        for number, (role, place, each) in enumerate(self._places):
            if each.code == os.EX_TEMPFAIL and each.gave_up == "Unavailable" and role.name not in _UNNOTED:
                self._places[number] = self._started(role, place)
            elif each.code is not None:
                self.summary.findings.append(
                    f"{each.name} ended before the time, with {each.code}: {each.said}"
                )
                return True
        return False

    async def _work(self) -> None:
        """Until the time is over; consumers in turn are stopped as in an upgrade, and have successors."""
        consumers = itertools.cycle(n for n, each in enumerate(self._places) if each[0].name == "consumer")
        began = stopped = time.monotonic()
        while (now := time.monotonic()) - began < self._plan.seconds:
            if now - stopped > _STOP_EVERY:
                number = next(consumers)
                await self._stops(*self._places[number])
                self._places[number] = self._started(*self._places[number][:2])
                stopped = now
            if self._ended():
                return
            await asyncio.sleep(_BREATH)

    async def _stops(self, role: Role, _: int, process: Process) -> None:
        """A worker is asked to stop; the others see themselves that nothing is left."""
        if role.name == "consumer":
            process.send(signal.SIGTERM)
        await self._ends(process, role)

    async def _ends(self, process: Process, role: Role) -> None:
        try:
            code = await process.ended(_CATCHING_UP if role.name in _FOLLOWERS else _PATIENCE)
        except TimeoutError:
            process.kill()
            self.summary.findings.append(f"{process.name} does not end: {process.said}")
            return
        if code == os.EX_TEMPFAIL and process.gave_up == "Unavailable":
            return  # its call was noted, and is checked
        if code not in (0, -signal.SIGTERM):
            self.summary.findings.append(f"{process.name} ended with {code}: {process.said}")
