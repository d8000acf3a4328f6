"""The system: which parts there are, for a bus and a configuration."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from holdfast import wiring
from holdfast.bus.client import Bus
from holdfast.config.config import Config
from holdfast.server import child
from holdfast.server.app import System, create_app
from holdfast.server.http import HttpPart, listen
from holdfast.server.parts import LifecyclePart, SweeperPart
from holdfast.server.supervisor import Supervisor


@dataclass(frozen=True, slots=True)
class Choice:
    """What is started besides the lifecycles."""

    http: bool = True
    sweeper: bool = True
    archiver: bool = True
    ingest: bool = True
    file: Path | None = None
    """The configuration's file, for the parts that are processes of their own."""


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
    if choice.archiver and config.archive_streams:
        supervisor.add(_child("archive", bus, choice), child.GRACE)
    if choice.ingest and config.ingest.channels:
        supervisor.add(_child("ingest", bus, choice), child.GRACE)
    return supervisor


def _child(command: str, bus: Bus, choice: Choice) -> child.ChildPart:
    """A Spark driver. Addresses go by the environment: anybody on the machine can read a command line."""
    environment = os.environ | {
        "HOLDFAST_URL": ",".join(partition.backend.url for partition in bus.partitions.all)
    }
    if choice.file is not None:
        environment["HOLDFAST_CONFIG"] = str(choice.file)
    return child.ChildPart(command, [command], environment)
