"""The system: which parts there are, for a bus and a configuration."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast import wiring
from holdfast.bus.client import Bus
from holdfast.config.config import Config
from holdfast.server.app import System, create_app
from holdfast.server.http import HttpPart, listen
from holdfast.server.parts import LifecyclePart, SweeperPart
from holdfast.server.supervisor import Supervisor


@dataclass(frozen=True, slots=True)
class Choice:
    """What is started besides the lifecycles."""

    http: bool = True
    sweeper: bool = True


def assemble(bus: Bus, config: Config, choice: Choice, supervisor: Supervisor | None = None) -> Supervisor:
    """All parts, in the order in which they are shown. The HTTP port is bound at once."""
    supervisor = supervisor or Supervisor()
    if choice.http:
        bound = listen(config.server.host, config.server.port)
        supervisor.add(HttpPart(create_app(System(bus.partitions, supervisor)), bound))
    for partition in bus.partitions.all:
        supervisor.add(LifecyclePart(bus.partitions, partition))
    for partition in bus.partitions.all if choice.sweeper else ():
        sweeper = wiring.sweeper(partition.backend, config, bus.name, partition.health)
        supervisor.add(SweeperPart(partition, sweeper, config.sweeper.interval))
    return supervisor
