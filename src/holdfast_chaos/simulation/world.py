"""A world: a scheduler, its actors, and what has to hold."""

from __future__ import annotations

import logging
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import ClassVar, NamedTuple

from holdfast_chaos import Violation
from holdfast_chaos.simulation.scheduler import Actor, Chance, Scheduler, Script

_ROUNDS = 60


class World(ABC):
    """One setting, drawn by chance, and a number of steps in it."""

    name: ClassVar[str]
    scheduler: Scheduler
    actors: list[Actor]
    rest = timedelta(minutes=2)
    """How long everybody waits between two rounds while the backlog drains."""

    audit_every = 20
    """Steps."""

    @abstractmethod
    def audit(self) -> None:
        """Look at everything; each step has already looked at what it changed."""

    @abstractmethod
    def backlog(self) -> str:
        """What is not done yet, in words; empty where everything is."""

    @abstractmethod
    def final_check(self) -> None:
        """After the backlog has drained: what went in is what came out."""

    def heal(self) -> None:
        """End all faults: actors at work finish it, and the backlog drains."""
        scheduler = self.scheduler
        scheduler.calm = scheduler.chance.settled = True
        scheduler.trace.append("-- no more faults, and nothing new --")
        for actor in self.actors:
            if actor.busy and scheduler.violation is None:
                scheduler.finish(actor)
        for _ in range(_ROUNDS):
            if scheduler.violation is not None or not self.backlog():
                return
            for actor in dict.fromkeys(self.actors):
                if actor.heals and scheduler.violation is None:
                    scheduler.finish(actor)
            scheduler.now += self.rest
        scheduler.violate("I15", f"the backlog does not drain: {self.backlog()}")

    def close(self) -> None:
        """End all actors."""
        for actor in dict.fromkeys(self.actors):
            actor.close()


class WorldHistory(NamedTuple):
    """What happened in one world from one seed."""

    world: World
    script: Script
    steps: int
    violation: Violation | None

    @property
    def trace(self) -> list[str]:
        """A line for each step."""
        return self.world.scheduler.trace


Build = Callable[[Chance], World]


def play(build: Build, chance: Chance, steps: int, *, closely: bool = False) -> WorldHistory:
    """Take steps until one violates something, then heal and check. `closely`: with an audit after each."""
    chance.begin()
    world = build(chance)
    scheduler, taken = world.scheduler, 0
    try:
        while taken < steps and scheduler.violation is None:
            chance.begin()
            scheduler.step(world.actors)
            taken += 1
            if closely or taken % world.audit_every == 0:
                world.audit()
        if scheduler.violation is None:
            world.heal()
        if scheduler.violation is None:
            world.audit()
            world.final_check()
    except Exception as error:  # of our own code, from whichever actor
        scheduler.violate("error", _place(error))
    finally:
        world.close()
    scheduler.conclude()
    return WorldHistory(world, chance.drawn, taken, scheduler.violation)


def _place(error: Exception) -> str:
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({frame.name}, {Path(frame.filename).name}:{frame.lineno})"


@contextmanager
def silence() -> Iterator[None]:
    """What our code logs about faults is what the simulation is made of: nobody needs to read it."""
    log = logging.getLogger("holdfast")
    before = log.level
    log.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        log.setLevel(before)
