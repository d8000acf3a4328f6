"""A world: a stage, its actors, and what has to hold on it."""

from __future__ import annotations

import logging
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import ClassVar, NamedTuple

from holdfast.chaos.simulation.chance import Chance, Script
from holdfast.chaos.simulation.stage import Actor, Stage, Violation

_ROUNDS = 60


class World(ABC):
    """One setting, drawn by chance, and a number of steps in it."""

    name: ClassVar[str]
    stage: Stage
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
    def account(self) -> None:
        """After the backlog has drained: what went in is what came out."""

    def heal(self) -> None:
        """No more faults: whoever is at work ends it, and the backlog drains."""
        stage = self.stage
        stage.calm = stage.chance.settled = True
        stage.trace.append("-- no more faults, and nothing new --")
        for actor in self.actors:
            if actor.busy and stage.violation is None:
                stage.finish(actor)
        for _ in range(_ROUNDS):
            if stage.violation is not None or not self.backlog():
                return
            for actor in dict.fromkeys(self.actors):
                if actor.heals and stage.violation is None:
                    stage.finish(actor)
            stage.now += self.rest
        stage.violate("I15", f"the backlog does not drain: {self.backlog()}")

    def close(self) -> None:
        """Everybody goes home."""
        for actor in dict.fromkeys(self.actors):
            actor.close()


class History(NamedTuple):
    """What happened in one world from one seed."""

    world: World
    script: Script
    steps: int
    violation: Violation | None

    @property
    def trace(self) -> list[str]:
        """A line for each step."""
        return self.world.stage.trace


Build = Callable[[Chance], World]


def play(build: Build, chance: Chance, steps: int, *, closely: bool = False) -> History:
    """Steps until one violates something, then healing and the account. `closely`: an audit after each."""
    chance.begin()
    world = build(chance)
    stage, taken = world.stage, 0
    try:
        while taken < steps and stage.violation is None:
            chance.begin()
            stage.step(world.actors)
            taken += 1
            if closely or taken % world.audit_every == 0:
                world.audit()
        if stage.violation is None:
            world.heal()
        if stage.violation is None:
            world.audit()
            world.account()
    except Exception as error:  # of our own code, from whichever actor
        stage.violate("error", _place(error))
    finally:
        world.close()
    stage.conclude()
    return History(world, chance.drawn, taken, stage.violation)


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
