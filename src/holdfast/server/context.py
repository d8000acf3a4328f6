"""The context: what every route can get at."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Request

from holdfast.bus.client import Bus
from holdfast.bus.partitions import Partitions
from holdfast.config.config import Config
from holdfast.deadletters.audit import Audit
from holdfast.deadletters.operations import Operations
from holdfast.deadletters.runner import Runner
from holdfast.deadletters.service import DeadLetters
from holdfast.server.auth.bucket import Buckets
from holdfast.server.auth.cursors import Cursors
from holdfast.server.auth.expiring import Expiring
from holdfast.server.auth.logins import Logins
from holdfast.server.auth.sessions import Sessions
from holdfast.server.auth.tokens import Tokens
from holdfast.server.capacity import Capacity
from holdfast.server.ledgers import Ledgers
from holdfast.server.loglines import PerMinute
from holdfast.server.places import Places
from holdfast.server.supervisor import Supervisor
from holdfast.server.waking import Waking
from holdfast.upkeep.secret import Secret


@dataclass(frozen=True, slots=True)
class System:
    """What the application serves."""

    bus: Bus
    supervisor: Supervisor
    config: Config
    letters: DeadLetters
    operations: Operations
    runner: Runner
    audit: Audit
    tokens: Tokens
    buckets: Buckets
    cursors: Cursors
    sessions: Sessions
    logins: Logins
    signatures: Expiring
    """Those that were used: within its window, each one holds once, on all servers."""
    capacity: Capacity
    waking: Waking
    live: Places
    """For live pages."""
    searches: Places
    """For what takes a thread or a process: previews, traces, lists of failed events."""
    queries: Places
    """For queries on the warehouse, each of which is a process."""
    lines: PerMinute
    """For lines of the log that anybody can cause."""
    ledgers: Ledgers | None = None
    """The books of the pipeline; None where there are none to look into."""

    @property
    def partitions(self) -> Partitions:
        """The stores."""
        return self.bus.partitions


def system(bus: Bus, supervisor: Supervisor, config: Config, *, ledgers: Ledgers | None = None) -> System:
    """The context of an application on a bus."""
    letters = DeadLetters(bus, config.namespace, ledgers.records if ledgers is not None else None)
    operations, tokens = Operations(letters), Tokens(bus, config.namespace)
    return System(
        bus=bus,
        supervisor=supervisor,
        config=config,
        letters=letters,
        operations=operations,
        runner=Runner(operations, bus.name),
        audit=Audit(bus.partitions.all[0].backend, config.namespace),
        tokens=tokens,
        buckets=Buckets(config.server.limits.rate),
        cursors=Cursors(Secret(bus.partitions.all[0].backend, config.namespace)),
        sessions=Sessions(bus, config.namespace, tokens, config.server.session_lifetime),
        logins=Logins(),
        signatures=Expiring(bus, f"{config.namespace}.state.signatures."),
        capacity=Capacity(bus.partitions, config.server.limits),
        waking=Waking(bus.partitions),
        live=Places("live pages", each=config.server.limits.live_per_caller, total=config.server.limits.live),
        searches=Places("searches", each=4, total=40),
        queries=Places("queries", each=2, total=4),
        lines=PerMinute(30),
        ledgers=ledgers,
    )


async def _known(request: Request) -> System:  # not in a thread, as FastAPI would have it otherwise
    known: System = request.app.state.system
    return known


Known = Annotated[System, Depends(_known)]
"""A route's way to the system: `async def route(system: Known)`."""
