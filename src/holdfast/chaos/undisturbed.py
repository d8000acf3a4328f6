"""A run without faults: everybody at work on one store, operators included, and nobody is hurt.

Whatever ends by itself before it should, and whatever ends badly, is a finding.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import time
from dataclasses import replace

from holdfast.chaos.account import Account
from holdfast.chaos.cast import Own
from holdfast.chaos.cold import Cold
from holdfast.chaos.crew import Crew
from holdfast.chaos.process import Process, until
from holdfast.chaos.rig import Rig
from holdfast.chaos.roles import CHANNEL, PACE, POLICIES, UNDISTURBED, Role
from holdfast.chaos.siege import Plan, until_drained

_BREATH, _TURN, _PATIENCE, _CATCHING_UP = 0.1, 12.0, 300.0, 900.0
WORKERS = frozenset({"consumer", "poller", "heartbeat"})
"""They go on until nothing is left."""
_FOLLOWERS = frozenset({"archiver", "ingester"})
"""They make no notes, and may be far behind when the last producer has ended."""
_UNNOTED = _FOLLOWERS | {"heartbeat"}
"""Their calls are in no history."""
LAST = frozenset({"archiver", "ingester", "sweeper"})
"""They go once more to the end of what the last producer has published."""


class Undisturbed:
    """One of them. `run` has it all but the judgement."""

    def __init__(self, rig: Rig, cold: Cold, plan: Plan, account: Account) -> None:
        self.rig, self.account, self._plan = rig, account, plan
        self._cast = Own(POLICIES)
        self.crew = Crew(rig, self._cast, cold, account, plan.seed, None)
        pace = PACE.get(account.store, {})
        self._roles = [
            replace(role, spec=role.spec | pace.get(role.name, {}))
            for role in UNDISTURBED
            if plan.pipeline or not role.pipeline
        ]
        self._places: list[tuple[Role, int, Process]] = []

    async def run(self) -> None:
        """Let them work for their time, then end what was begun, and drain."""
        began = time.monotonic()
        await self._found()
        self._places = [self._started(role, place) for role in self._roles for place in range(role.count)]
        await self._all_at_work()
        await self._work()
        self.crew.finish()
        await asyncio.gather(
            *(self._ends(each, role) for role, _, each in self._places if role.name not in WORKERS)
        )
        await until_drained(self.rig)
        self.crew.end()
        await asyncio.gather(*(self._stops(*each) for each in self._places if each[0].name in WORKERS))
        for role in (role for role in self._roles if role.name in LAST):
            await self.crew.see_through(role, 0, patience=_CATCHING_UP)
        self.account.seconds = time.monotonic() - began

    async def _found(self) -> None:
        """Everybody who needs the log is known before the first event: what nobody needs may be trimmed."""
        async with self.rig.bus("founder") as bus:
            await self._cast.found(bus)
            for name in ("archiver", "ingest") if self._plan.pipeline else ():
                await bus.partitions.all[0].backend.attach(CHANNEL, name)

    def _started(self, role: Role, place: int) -> tuple[Role, int, Process]:
        return role, place, self.crew.start(role, place, watch_log=True)

    async def _all_at_work(self) -> None:
        """Their time begins when all of them have begun, however long that takes."""

        async def noted() -> bool:
            noting = [each.name for role, _, each in self._places if role.name not in _FOLLOWERS]
            files = [self.rig.folder / f"{name}.jsonl" for name in noting]
            return all(file.exists() and file.stat().st_size for file in files) or self._ended()

        try:
            await until(noted, _PATIENCE)
        except TimeoutError:
            self.account.findings.append(f"after {_PATIENCE:g} s somebody had not begun")

    def _ended(self) -> bool:
        """Whether somebody ended by himself, who should not. Who gave up on a store that did not answer has a
        successor: whether the machine was too slow for an answer is judged by the call that was noted."""
        for number, (role, place, each) in enumerate(self._places):
            if each.code == os.EX_TEMPFAIL and each.gave_up == "Unavailable" and role.name not in _UNNOTED:
                self._places[number] = self._started(role, place)
            elif each.code is not None:
                self.account.findings.append(
                    f"{each.name} ended before the time, with {each.code}: {each.said}"
                )
                return True
        return False

    async def _work(self) -> None:
        """Until the time is over; consumers in turn are stopped as in an upgrade, and have successors."""
        consumers = itertools.cycle(n for n, each in enumerate(self._places) if each[0].name == "consumer")
        began = stopped = time.monotonic()
        while (now := time.monotonic()) - began < self._plan.seconds:
            if now - stopped > _TURN:
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
            self.account.findings.append(f"{process.name} does not end: {process.said}")
            return
        if code == os.EX_TEMPFAIL and process.gave_up == "Unavailable":
            return  # its call was noted, and is judged
        if code not in (0, -signal.SIGTERM):
            self.account.findings.append(f"{process.name} ended with {code}: {process.said}")
