"""The crew: processes in their places, each with a successor, and what became of every one of them."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
from collections import defaultdict
from contextlib import suppress
from typing import Any

from holdfast.chaos.account import Account
from holdfast.chaos.cast import Cast
from holdfast.chaos.cold import Cold
from holdfast.chaos.process import Process
from holdfast.chaos.rig import Rig
from holdfast.chaos.roles import CHANNEL, Role
from holdfast.chaos.schedule import Turn

_TURN, _AFTER, _FINALE, _TRIES, _BREATH = 12.0, 2.0, 120.0, 8, 0.1
_LEASE = 121
"""Seconds that the clock of an ingest is past that of the one before it, which held leases of two minutes."""


class Crew:
    """Everybody who works on one store."""

    def __init__(
        self, rig: Rig, cast: Cast, cold: Cold, account: Account, seed: int, app: str | None
    ) -> None:
        self._rig, self._cast, self._account, self._seed, self._app = rig, cast, account, seed, app
        self.cold, self.pipeline = cold, rig.folder / "pipeline"
        self.pipeline.mkdir(exist_ok=True)
        self._enough, self._drained = rig.folder / "enough", rig.folder / "drained"
        self._numbers = itertools.count(1)
        self._ahead = itertools.count(_LEASE, _LEASE)
        self._before: dict[str, list[str]] = defaultdict(list)

    def finish(self) -> None:
        """Nobody begins anything new from now on."""
        self._enough.touch()

    def end(self) -> None:
        """Nothing is left to do for those who only work on what is there."""
        self._drained.touch()

    async def take(self, role: Role, place: int, turn: Turn) -> None:
        """One turn of somebody in a place, to its end."""
        process = self.start(role, place, turn)
        self._note(role, turn, await self._live(process, turn), process)

    async def see_through(
        self, role: Role, place: int, told: asyncio.Event | None = None, patience: float = _FINALE
    ) -> None:
        """Let somebody work to the end, or until told to stop. Whom a fault still catches begins again."""
        for _ in range(_TRIES):
            process = self.start(role, place)
            while told is not None and process.code is None and not told.is_set():
                await asyncio.sleep(_BREATH)
            if told is not None:
                process.send(signal.SIGTERM)
            if not await _ends(process, patience):
                process.kill()
                self._account.findings.append(f"{process.name} does not end: {process.said}")
                return
            if (code := await process.ended()) in (0, -signal.SIGTERM):
                return
            if code != os.EX_TEMPFAIL:
                break
        self._account.findings.append(f"{process.name} ended badly: {process.said}")

    def start(self, role: Role, place: int, turn: Turn | None = None, **more: Any) -> Process:
        """Somebody for a place; what happens to it in its turn is for the caller to do."""
        name = f"{next(self._numbers):05}-{role.name}"
        who = f"{role.name}-{place}"
        ends = {"until": str(self._enough), "drained": str(self._drained)}
        spec: dict[str, Any] = {"channel": CHANNEL, "prefix": name, **ends, **role.spec}
        spec |= self._own(role, place, who) | more
        if turn is not None and turn.noise:
            spec["noise"] = f"{self._seed} {name}"
        if turn is not None and turn.shift:
            spec["shift"] = turn.shift
        self._before[who].append(str(self._rig.folder / f"{name}.jsonl"))
        return self._rig.start(role.party, turn.failpoints if turn else "", name, **spec)

    def _own(self, role: Role, place: int, who: str) -> dict[str, Any]:
        """What only some roles need to know."""
        match role.name:
            case "producer" | "spooler" | "bulk-producer":
                spool = {"spool": str(self._rig.folder / "spool")} if role.name == "spooler" else {}
                recent = {"recent": str(self._rig.folder / f"{who}.recent")} if "bulk" in who else {}
                return {"before": list(self._before[who]), **spool, **recent, **self._cast.published(place)}
            case "operator" | "poller":
                return {"consumers": self._cast.consumers}
            case "live-operator":
                own = [name for _, name in self._cast.consumers][place :: role.count]
                return {"own": own, "recent": str(self._rig.folder / "*.recent")}
            case "consumer" if self._app is not None:
                return {"app": self._app}
            case "sweeper":
                return {"owner": f"sweeper-{next(self._numbers)}"}
            case "archiver":
                return {"folder": self.cold.url, "environment": self.cold.environment}
            case "ingester":
                return {"folder": str(self.pipeline), "kind": "duckdb", "ahead": next(self._ahead)}
        return {}

    async def _live(self, process: Process, turn: Turn) -> int:
        """See a process through its turn; answers how it ended."""
        limit = turn.after if turn.kind in ("moment", "pause") else _TURN
        if await _ends(process, limit):
            return await process.ended()
        if turn.kind == "pause":
            process.send(signal.SIGSTOP)
            await _ends(process, turn.length)
            process.send(signal.SIGCONT)
            await _ends(process, _AFTER)
        if turn.kind != "moment":
            process.send(signal.SIGTERM)
            if await _ends(process, _TURN):
                return await process.ended()
        process.kill()
        return await process.ended()

    def _note(self, role: Role, turn: Turn, code: int, process: Process) -> None:
        account = self._account
        account.shifted += turn.shift != 0
        account.noisy += turn.noise
        account.pauses += turn.kind == "pause"
        self._rig.processes.remove(process)
        if code == -signal.SIGKILL and turn.kind == "point" and process.hits[turn.point] > turn.skip:
            account.kills[turn.point] += 1
        elif code == -signal.SIGKILL:
            account.moments[role.name] += 1
        elif code in (0, -signal.SIGTERM):
            account.survived += 1
        elif code == os.EX_TEMPFAIL:
            account.ended[process.gave_up] += 1
        else:
            account.findings.append(f"{process.name} ended with {code}: {process.said}")


async def _ends(process: Process, within: float) -> bool:
    with suppress(TimeoutError):
        await process.ended(within)
    return process.code is not None
