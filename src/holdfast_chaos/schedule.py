"""The schedule: which fault comes next, and where. It follows from the seed alone; only moments vary.

Every role has a list of faults of its own, and the server another one, so that neither depends on how fast
the others are.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Literal, get_args

from holdfast_chaos.roles import Role, points

Fault = Literal["kill", "pause", "clock", "noise", "server", "network", "power", "disk", "s3"]
FAULTS: tuple[Fault, ...] = get_args(Fault)
S3Fault = Literal["409", "500", "503", "lost", "cut", "none"]
S3: tuple[S3Fault, ...] = get_args(S3Fault)
DAY = 86_400.0
_LIVES, _PAUSES, _GAPS = (0.05, 1.5), (2.2, 3.0), (1.5, 5.0)
_MOMENTS, _STOPS, _SPARED, _REQUESTS = 0.2, 0.1, 0.05, 8


@dataclass(frozen=True, slots=True)
class ProcessFault:
    """What happens to one process of a role."""

    kind: Literal["point", "moment", "pause", "spared"]
    point: str = ""
    skip: int = 0
    """Hits of the point that are let pass."""
    after: float = 0.0
    """Seconds of life until the moment."""
    length: float = 0.0
    """Seconds that it is stopped."""
    shift: float = 0.0
    """Seconds by which its clock is wrong."""
    noise: bool = False

    @property
    def failpoints(self) -> str:
        """As the process takes it."""
        return f"{self.point}=kill:{self.skip}" if self.point else ""


@dataclass(frozen=True, slots=True)
class ServerFault:
    """What happens to the server, or to the way to it."""

    kind: str
    gap: float
    """Seconds of quiet before."""
    length: float = 0.0
    """Seconds until it heals."""
    script: tuple[S3Fault, ...] = ()
    """What the next requests to S3 meet."""


NETWORK = ("cut", "cut_requests", "cut_replies", "delay", "drip", "refuse", "reset", "drop_reply")


def process_fault(seed: str, role: Role, store: str, number: int, faults: frozenset[str]) -> ProcessFault:
    """The fault of that number for a process of a role. Failpoints come in rotation: none is left out."""
    chance = random.Random(f"{seed} {store} {role.name} {number}")
    shift = chance.choice((-DAY, DAY)) if "clock" in faults and chance.random() < 0.1 else 0.0
    noise = "noise" in faults and chance.random() < 0.2
    drawn, where = chance.random(), points(role, store)
    after = chance.uniform(*_LIVES)
    if "pause" in faults and drawn < _STOPS:
        return ProcessFault("pause", after=after, length=chance.uniform(*_PAUSES), shift=shift, noise=noise)
    if "kill" not in faults or drawn > 1 - _SPARED:
        return ProcessFault("spared", after=after, shift=shift, noise=noise)
    if drawn < _STOPS + _MOMENTS or not where:
        return ProcessFault("moment", after=after, shift=shift, noise=noise)
    return ProcessFault(
        "point", where[number % len(where)], chance.randrange(role.skips), shift=shift, noise=noise
    )


def server_fault(seed: str, store: str, number: int, faults: frozenset[str]) -> ServerFault | None:
    """The fault of that number for the server; None if no fault concerns it."""
    chance = random.Random(f"{seed} {store} server {number}")
    kinds: list[str] = [each for each in ("server", "power", "disk", "s3") if each in faults]
    if "network" in faults:
        kinds.append(NETWORK[number % len(NETWORK)])
    if not kinds:
        return None
    kind, gap, length = chance.choice(kinds), chance.uniform(*_GAPS), chance.uniform(0.3, 2.0)
    return ServerFault(kind, gap, length, tuple(chance.choices(S3, k=_REQUESTS)) if kind == "s3" else ())
