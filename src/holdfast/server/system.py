"""The system: which parts there are, for a bus and a configuration."""

from __future__ import annotations

import ipaddress
import os
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from holdfast import wiring
from holdfast.bus.client import Bus
from holdfast.bus.leash import GRACE
from holdfast.config.config import Config
from holdfast.config.load import FALLBACK
from holdfast.model.errors import InvalidInput
from holdfast.server.app import create_app
from holdfast.server.auth.access import tell_access
from holdfast.server.child import ChildPart
from holdfast.server.context import system
from holdfast.server.drivers import standing
from holdfast.server.http import HttpPart, listen
from holdfast.server.ledgers import Ledgers
from holdfast.server.operating import OperationsPart
from holdfast.server.parts import ExpiryPart, FoldingPart, LifecyclePart, SweeperPart
from holdfast.server.supervisor import Supervisor


@dataclass(frozen=True, slots=True)
class Choice:
    """What is started."""

    http: bool = True
    lifecycle: bool = True
    sweeper: bool = True
    archiver: bool = True
    ingest: bool = True
    file: Path | None = None
    """The configuration's file, for the parts that are processes of their own."""
    logs: Path | None = None
    """The folder of their logs; without it they share ours."""


def assemble(
    bus: Bus,
    config: Config,
    choice: Choice,
    supervisor: Supervisor | None = None,
    ledgers: Ledgers | None = None,
) -> Supervisor:
    """All parts, in the order in which they are shown. The HTTP port is bound at once."""
    supervisor = supervisor or Supervisor()
    if choice.http:
        bound = listen(config.server.host, config.server.port)
        if config.server.open and not ipaddress.ip_address(bound.getsockname()[0]).is_loopback:
            bound.close()
            raise InvalidInput(
                f"server.open is for loopback only, and {config.server.host} is not: leave it out, use tokens"
            )
        known = system(bus, supervisor, config, ledgers=ledgers)
        app = create_app(known)
        supervisor.on_stop += [known.waking.wake_all, app.state.watch.stop]
        supervisor.add(
            HttpPart(
                app, bound, partial(tell_access, known), config.server.limits, config.server.trusted_proxies
            )
        )
        supervisor.add(app.state.watch)
        supervisor.add(ExpiryPart([*known.sessions.records, known.signatures]))
        supervisor.add(OperationsPart(known.runner))  # what a call was promised, somebody must do
    if choice.http or choice.sweeper:  # an instance may have no sweeper, or one that comes too seldom
        supervisor.add(FoldingPart(bus.partitions, bus.name, config.dlq.interval))
    for partition in bus.partitions.all if choice.lifecycle else ():
        supervisor.add(LifecyclePart(bus.partitions, partition))
    for partition in bus.partitions.all if choice.sweeper else ():
        sweeper = wiring.sweeper(partition.backend, config, bus.name, partition.health)
        supervisor.add(SweeperPart(partition, sweeper, config.sweeper.interval))
    if choice.archiver and config.archive_streams:
        supervisor.add(_child("archive", bus, config, choice), GRACE)
    if choice.ingest and config.ingest.channels:
        supervisor.add(_child("ingest", bus, config, choice), GRACE)
    return supervisor


def _child(command: str, bus: Bus, config: Config, choice: Choice) -> ChildPart:
    """A Spark driver. Addresses go by the environment: anybody on the machine can read a command line.

    None means the private store: a child is a user of it by itself, so that it outlives us until the child
    has written what it holds.
    """
    plain = choice.logs is not None and config.log_format == "auto"
    environment = os.environ | {
        "HOLDFAST_URL": ",".join(config.url),
        FALLBACK: "",
        "HOLDFAST_LOG_FORMAT": "lines" if plain else config.log_format,
    }
    if choice.file is not None:
        environment["HOLDFAST_CONFIG"] = str(choice.file)
    told = partial(standing, bus.partitions.all[0], config.namespace, command)
    return ChildPart(command, [command], environment, choice.logs, told)
