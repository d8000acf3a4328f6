"""A siege: everybody at work on one store, blow upon blow, until there were enough of them; then it heals."""

from __future__ import annotations

import asyncio
import itertools
import math
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from holdfast.chaos import schedule
from holdfast.chaos.account import Account
from holdfast.chaos.cast import cast_of
from holdfast.chaos.cold import Cold
from holdfast.chaos.crew import Crew
from holdfast.chaos.nemesis import Nemesis
from holdfast.chaos.rig import Rig
from holdfast.chaos.roles import CHANNEL, ROLES, Role

_PATIENCE, _BREATH = 120.0, 0.1


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be done to a store. It is over with the first of time and, where given, both counts."""

    seed: int
    faults: frozenset[str]
    """Without any, nobody is hurt, and more must hold: see `undisturbed`."""
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

    def __init__(self, rig: Rig, nemesis: Nemesis, cold: Cold, plan: Plan, account: Account) -> None:
        self.rig, self.account, self._nemesis, self._plan = rig, account, nemesis, plan
        self._cast = cast_of(plan.app, plan.samples)
        self.crew = Crew(rig, self._cast, cold, account, plan.seed, plan.app)
        self._over = asyncio.Event()
        roles = [role for role in ROLES if plan.pipeline or not role.pipeline]
        self._places = [(role, place) for role in roles for place in range(role.count)]

    async def run(self) -> None:
        """Strike until it is enough, then heal and drain."""
        began = time.monotonic()
        await self._found()
        async with asyncio.TaskGroup() as group:
            for role, place in self._places:
                group.create_task(self._keep(role, place))
            group.create_task(self._strike())
            group.create_task(self._measure())
            await self._wait(began)
            self._over.set()
        await self._nemesis.revive()
        await self._finale()
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

    async def _keep(self, role: Role, place: int) -> None:
        """Somebody in this place at every moment."""
        for number in itertools.count(place, role.count):
            if self._over.is_set():
                return
            turn = schedule.turn(str(self._plan.seed), role, self.account.store, number, self._plan.faults)
            await self.crew.take(role, place, turn)

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

    async def _finale(self) -> None:
        """Nobody is killed any more: producers settle what is open, workers drain, the pipeline follows."""
        self.crew.finish()
        drained = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            for role, place in self._places:
                if role.name == "consumer":
                    group.create_task(self.crew.see_through(role, place, drained))
            await self._all("producer", "spooler", "operator", "newcomer")
            await self._all("clerk", "sweeper")
            await until_drained(self.rig)
            drained.set()
        await self._all("archiver", "ingester")
        await self._all("sweeper")

    async def _all(self, *names: str) -> None:
        await asyncio.gather(
            *(self.crew.see_through(*each) for each in self._places if each[0].name in names)
        )


async def until_drained(rig: Rig) -> None:
    """Until nothing is live, or for a long time never fewer were: what is left then the judge will name."""
    bus = rig.bus("drain")
    async with bus:
        [partition] = bus.partitions.all
        fewest, since = math.inf, time.monotonic()
        while time.monotonic() - since < _PATIENCE:
            live = sum(sum(each.live.values()) for each in await partition.backend.backlogs(1))
            if not live:
                return
            if live < fewest:
                fewest, since = live, time.monotonic()
            await asyncio.sleep(_BREATH)
