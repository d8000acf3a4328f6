"""A siege: everybody at work on one store, blow upon blow, until there were enough of them; then it heals."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import time
from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.chaos import schedule
from holdfast.chaos.account import Account
from holdfast.chaos.cast import cast_of
from holdfast.chaos.nemesis import Nemesis
from holdfast.chaos.process import Process
from holdfast.chaos.rig import Rig
from holdfast.chaos.roles import CHANNEL, ROLES, Role
from holdfast.chaos.schedule import Turn

_TURN, _FINALE, _TRIES, _BREATH = 8.0, 120.0, 8, 0.1
_LEASE = 121
"""Seconds that the clock of an ingest is past that of the one before it, which held leases of two minutes."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be done to a store. It is over with the first of time and, where given, both counts."""

    seed: int
    faults: frozenset[str]
    seconds: float
    kills: int | None = None
    server_kills: int | None = None
    pipeline: bool = True
    app: str | None = None
    """The handlers of a user, as `module:name`, instead of the rig's own."""
    samples: Path | None = None
    """What is published to them: JSON lines of data."""


class Siege:
    """One of them. `run` has it all but the judgement."""

    def __init__(self, rig: Rig, nemesis: Nemesis, plan: Plan, account: Account) -> None:
        self.rig, self.account, self._nemesis, self._plan = rig, account, nemesis, plan
        self.cold, self.pipeline = rig.folder / "cold", rig.folder / "pipeline"
        self._enough, self._over = rig.folder / "enough", asyncio.Event()
        self._numbers = itertools.count(1)
        self._ahead = itertools.count(_LEASE, _LEASE)
        self._cast = cast_of(plan.app, plan.samples)
        self._before: dict[str, list[str]] = defaultdict(list)

    @property
    def roles(self) -> list[Role]:
        """Who takes part."""
        return [role for role in ROLES if self._plan.pipeline or not role.pipeline]

    async def run(self) -> None:
        """Strike until it is enough, then heal and drain."""
        began = time.monotonic()
        self.pipeline.mkdir(exist_ok=True)
        await self._found()
        places = [(role, place) for role in self.roles for place in range(role.count)]
        async with asyncio.TaskGroup() as group:
            for role, place in places:
                group.create_task(self._keep(role, place))
            group.create_task(self._strike())
            group.create_task(self._measure())
            await self._wait(began)
            self._over.set()
        await self._nemesis.revive()
        await self._finale(places)
        self.account.seconds = time.monotonic() - began

    async def _found(self) -> None:
        """Everybody who needs the log is known before the first event: what nobody needs may be trimmed."""
        async with self.rig.bus("founder") as bus:
            await self._cast.found(bus)
            for name in ("archiver", "ingest") if self._plan.pipeline else ():
                await bus.partitions.all[0].backend.attach(CHANNEL, name)

    async def _wait(self, began: float) -> None:
        while time.monotonic() - began < self._plan.seconds and not self._reached():
            await asyncio.sleep(_BREATH)

    def _reached(self) -> bool:
        kills, servers = self._plan.kills, self._plan.server_kills
        if kills is None and servers is None:
            return False
        return self.account.killed >= (kills or 0) and self.account.server_kills >= (servers or 0)

    # the processes

    async def _keep(self, role: Role, place: int) -> None:
        """Somebody in this place at every moment."""
        for number in itertools.count(place, role.count):
            if self._over.is_set():
                return
            turn = schedule.turn(str(self._plan.seed), role, self.account.store, number, self._plan.faults)
            process = self._start(role, place, turn)
            self._note(role, turn, await self._live(process, turn), process)

    def _start(self, role: Role, place: int, turn: Turn | None = None) -> Process:
        name = f"{next(self._numbers):05}-{role.name}"
        who = f"{role.name}-{place}"
        spec: dict[str, Any] = {"channel": CHANNEL, "until": str(self._enough), "prefix": name, **role.spec}
        spec |= self._own(role, place, who)
        if turn is not None and turn.noise:
            spec["noise"] = f"{self._plan.seed} {name}"
        if turn is not None and turn.shift:
            spec["shift"] = turn.shift
        self._before[who].append(str(self.rig.folder / f"{name}.jsonl"))
        return self.rig.start(role.party, turn.failpoints if turn else "", name, **spec)

    def _own(self, role: Role, place: int, who: str) -> dict[str, Any]:
        """What only some roles need to know."""
        match role.name:
            case "producer" | "spooler":
                spool = {"spool": str(self.rig.folder / "spool")} if role.name == "spooler" else {}
                return {"before": list(self._before[who]), **spool, **self._cast.published(place)}
            case "operator":
                return {"consumers": self._cast.consumers}
            case "consumer" if self._plan.app is not None:
                return {"app": self._plan.app}
            case "sweeper":
                return {"owner": f"sweeper-{next(self._numbers)}"}
            case "archiver":
                return {"folder": str(self.cold)}
            case "ingester":
                return {"folder": str(self.pipeline), "kind": "duckdb", "ahead": next(self._ahead)}
        return {}

    async def _live(self, process: Process, turn: Turn) -> int:
        """See a process through its turn; answers how it ended."""
        limit = turn.after if turn.kind in ("moment", "pause") else _TURN
        if await self._ends(process, limit):
            return await process.ended()
        if turn.kind == "pause":
            process.send(signal.SIGSTOP)
            await self._ends(process, turn.length)
            process.send(signal.SIGCONT)
            await self._ends(process, _TURN)
        if turn.kind != "moment":
            process.send(signal.SIGTERM)
            if await self._ends(process, _TURN):
                return await process.ended()
        process.kill()
        return await process.ended()

    async def _ends(self, process: Process, within: float) -> bool:
        with suppress(TimeoutError):
            await process.ended(within)
        return process.code is not None

    def _note(self, role: Role, turn: Turn, code: int, process: Process) -> None:
        account = self.account
        account.shifted += turn.shift != 0
        account.noisy += turn.noise
        account.pauses += turn.kind == "pause"
        self.rig.processes.remove(process)
        if code == -signal.SIGKILL and turn.kind == "point" and self._hit(process, turn):
            account.kills[turn.point] += 1
        elif code == -signal.SIGKILL:
            account.moments[role.name] += 1
        elif code in (0, -signal.SIGTERM):
            account.survived += 1
        elif code == os.EX_TEMPFAIL:
            account.ended[process.gave_up] += 1
        else:
            account.findings.append(f"{process.name} ended with {code}: {process.said}")

    def _hit(self, process: Process, turn: Turn) -> bool:
        """Whether it was killed by its failpoint, and not for its age."""
        return process.hits[turn.point] > turn.skip

    # the server

    async def _strike(self) -> None:
        for number in itertools.count():
            blow = schedule.blow(str(self._plan.seed), self.account.store, number, self._plan.faults)
            if blow is None or await self._rest(blow.gap):
                return
            await self._nemesis.strike(blow)
            self.account.blows[blow.kind] += 1

    async def _rest(self, seconds: float) -> bool:
        """Wait; whether it is over meanwhile."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._over.wait(), seconds)
        return self._over.is_set()

    async def _measure(self) -> None:
        """The most memory that anybody of a role has."""
        while not await self._rest(0.5):
            for process in list(self.rig.processes):
                role = process.name.partition("-")[2]
                self.account.memory[role] = max(self.account.memory.get(role, 0), process.memory)

    # the end

    async def _finale(self, places: list[tuple[Role, int]]) -> None:
        """Nobody is killed any more: producers settle what is open, workers drain, the pipeline follows."""
        self._enough.touch()
        drained = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            for role, place in places:
                if role.name == "consumer":
                    group.create_task(self._see_through(role, place, drained))
            await self._all(places, "producer", "spooler", "operator", "newcomer")
            await self._all(places, "clerk", "sweeper")
            await self._drained()
            drained.set()
        await self._all(places, "archiver", "ingester")
        await self._all(places, "sweeper")

    async def _all(self, places: list[tuple[Role, int]], *names: str) -> None:
        await asyncio.gather(*(self._see_through(*each) for each in places if each[0].name in names))

    async def _see_through(self, role: Role, place: int, told: asyncio.Event | None = None) -> None:
        """Let somebody work to the end, or until told to stop. Whom a fault still catches begins again."""
        for _ in range(_TRIES):
            process = self._start(role, place)
            if told is not None:
                await self._watch(process, told)
                process.send(signal.SIGTERM)
            if not await self._ends(process, _FINALE):
                process.kill()
                self.account.findings.append(f"{process.name} does not end: {process.said}")
                return
            if (code := await process.ended()) == 0:
                return
            if code != os.EX_TEMPFAIL:
                break
        self.account.findings.append(f"{process.name} ended badly: {process.said}")

    async def _watch(self, process: Process, told: asyncio.Event) -> None:
        while process.code is None and not told.is_set():
            await asyncio.sleep(_BREATH)

    async def _drained(self) -> None:
        """Until nothing is live; what is left after that the judge will name."""
        bus = self.rig.bus("drain")
        async with bus:
            [partition] = bus.partitions.all
            deadline = time.monotonic() + _FINALE
            while time.monotonic() < deadline:
                backlogs = await partition.backend.backlogs(1)
                if not any(sum(each.live.values()) for each in backlogs):
                    return
                await asyncio.sleep(_BREATH)
