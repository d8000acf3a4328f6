"""The system: what every route can get at."""

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
from holdfast.deadletters.sources import FailedRecords
from holdfast.server.auth.sessions import ExpiringRecords, Sessions
from holdfast.server.auth.signing import SealedCursors
from holdfast.server.auth.tokens import Tokens
from holdfast.server.limits import Buckets, CreationLimits, Logins, PerMinute, Slots
from holdfast.server.pipeline_port import PipelinePort
from holdfast.server.supervisor import Supervisor
from holdfast.server.wakeups import WakeUps
from holdfast.upkeep.state import Secret


@dataclass(frozen=True, slots=True)
class System:
    """What the application serves."""

    bus: Bus
    supervisor: Supervisor
    config: Config
    deadletters: DeadLetters
    operations: Operations
    runner: Runner
    audit: Audit
    tokens: Tokens
    buckets: Buckets
    cursors: SealedCursors
    sessions: Sessions
    logins: Logins
    signatures: ExpiringRecords
    """Those that were used: within its window each one is valid once, on all servers."""
    capacity: CreationLimits
    wakeups: WakeUps
    live: Slots
    """For live pages."""
    searches: Slots
    """For what takes a thread or a process: previews, traces, lists of failed events."""
    queries: Slots
    """For queries on the warehouse, each of which is a process."""
    lines: PerMinute
    """For log lines that anybody can cause."""
    pipeline: PipelinePort | None = None
    """None where there is no pipeline to look into."""

    @property
    def partitions(self) -> Partitions:
        """The stores."""
        return self.bus.partitions

    @property
    def failed_records(self) -> FailedRecords | None:
        """What the ingest gave up on; None without an ingest."""
        return self.pipeline.records if self.pipeline is not None else None


def create_system(
    bus: Bus, supervisor: Supervisor, config: Config, *, pipeline: PipelinePort | None = None
) -> System:
    """What an application on a bus serves."""
    deadletters = DeadLetters(bus, config.namespace, None if pipeline is None else pipeline.records)
    operations, tokens = Operations(deadletters), Tokens(bus, config.namespace)
    return System(
        bus=bus,
        supervisor=supervisor,
        config=config,
        deadletters=deadletters,
        operations=operations,
        runner=Runner(operations, bus.name),
        audit=Audit(bus.partitions.all[0].backend, config.namespace),
        tokens=tokens,
        buckets=Buckets(config.server.limits.rate),
        cursors=SealedCursors(Secret(bus.partitions.all[0].backend, config.namespace)),
        sessions=Sessions(bus, config.namespace, tokens, config.server.session_lifetime),
        logins=Logins(),
        signatures=ExpiringRecords(bus, f"{config.namespace}.state.signatures."),
        capacity=CreationLimits(bus.partitions, config.server.limits),
        wakeups=WakeUps(bus.partitions),
        live=Slots("live pages", each=config.server.limits.live_per_caller, total=config.server.limits.live),
        searches=Slots("searches", each=4, total=40),
        queries=Slots("queries", each=2, total=4),
        lines=PerMinute(30),
        pipeline=pipeline,
    )


async def _known(request: Request) -> System:  # not in a thread, as FastAPI would have it otherwise
    known: System = request.app.state.system
    return known


Known = Annotated[System, Depends(_known)]
"""A route's way to the system: `async def route(system: Known)`."""
