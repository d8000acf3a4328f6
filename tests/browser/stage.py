"""The stage: a system inside this process, with dead letters of every kind of trouble."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta

import holdfast
from holdfast.bus.client import Bus
from holdfast.config.config import Config
from holdfast.contracts import Backend
from holdfast.model.decide import describe
from holdfast.model.event import Event
from holdfast.model.job import Burial, Job, Reason, Retry
from holdfast.model.scopes import scope_of
from holdfast.server.app import Choice, assemble
from holdfast.server.auth.sessions import Sessions, link_to
from holdfast.server.auth.tokens import Tokens
from holdfast.server.http import HttpService
from holdfast.server.supervisor import Supervisor
from holdfast.upkeep.state import put_report, reconciliation
from kit import claim, subscribe

ROUTE, AMOUNT, HOSTILE = 30, 5, 3
"""How many dead letters there are of each cluster."""
SCRIPT, IMAGE = "<script>window.hurt = 1</script>", '"><img src=x onerror="window.hurt = 2">'
BIDI = "a\u202ebc\u202c"
LARGE = "x" * 1_000_000


@dataclass
class Stage:
    """What a test can use."""

    bus: Bus
    url: str
    supervisor: Supervisor

    @property
    def store(self) -> Backend:
        return self.bus.partitions.all[0].backend

    async def token(self, kind: str, channel: str | None = None, consumer: str | None = None) -> str:
        """The text of a new token."""
        issued = await Tokens(self.bus, "gbe").create(scope_of(kind, channel, consumer))
        return issued.text

    async def link(self) -> str:
        """The path of a link that signs an admin in."""
        tokens = Tokens(self.bus, "gbe")
        token = (await tokens.create(scope_of("admin", None, None))).token
        return link_to("", await Sessions(self.bus, "gbe", tokens, timedelta(hours=1)).link(token))

    async def revoke(self, token: str) -> None:
        """Let nobody in with it any more."""
        await Tokens(self.bus, "gbe").revoke(token.split("_")[1])

    async def fill(self) -> None:
        """Three clusters: a network that is down, an event without an amount, and hostile payloads."""
        for channel, consumer in (("orders", "billing"), ("payments", "ledger")):
            await subscribe(self.store, consumer, channel=channel)
        orders = [Event({"order": n, "total": 3.5}, f"o-{n}") for n in range(ROUTE)]
        orders += [
            Event({"order": n, "total": 3.5}, f"01a1e14a-2202-7861-954a-{n:012}") for n in range(AMOUNT)
        ]
        await self.store.log.publish("orders", orders)
        await self.bury("orders", "billing", ROUTE, _no_route)
        await self.bury("orders", "billing", AMOUNT, lambda _: KeyError("amount"))
        await self.hostile()
        await self.declare()
        await self.reconcile()

    async def declare(self) -> None:
        """A schema such as people have, and one with hostile names."""
        texts = {"status": {"enum": ["new", "paid", "sent"]}, "note": {"type": ["string", "null"]}}
        numbers = {"order": {"type": "integer"}, "total": {"type": "number", "minimum": 0}}
        lines = {"lines": {"type": "array", "items": {"title": "Line", "type": "object"}}}
        order = {"properties": numbers | texts | lines, "required": ["order", "total"], "type": "object"}
        await self.bus.declare("orders", order | {"title": "Order"})
        odd = {SCRIPT: {"const": IMAGE}, BIDI: {"title": SCRIPT, "type": "object"}, "x" * 500: {}}
        await self.bus.declare("payments", {"properties": odd})

    async def reconcile(self) -> None:
        """Books that agree, and some that do not."""
        counts = {"published": 35, "archived": 35, "ingested": 30, "failed": 5}
        lost = {"kind": "missing", "where": "warehouse", "source": "default", "id": SCRIPT}
        tally = {"kind": "missing", "where": "warehouse", "events": 1}
        for channel, tallies, differences in (("orders", [], []), ("payments", [tally], [lost])):
            report = {"channel": channel, "day": None, "tallies": tallies, "differences": differences}
            await put_report(self.store, "gbe", reconciliation(channel), report | counts, listed=True)

    async def hostile(self) -> None:
        """Events and errors that would like to be more than text."""
        headers = {"x-note": IMAGE}
        bad = Event({"note": SCRIPT, "more": IMAGE, "turned": BIDI}, "pay-<b>1</b>", headers=headers)
        more = Event({"blob": LARGE}, "pay-large"), Event(b"\0\xfe", "pay-bytes")
        await self.store.log.publish("payments", [bad, *more])
        await self.bury("payments", "ledger", HOSTILE, lambda _: RuntimeError(f"{SCRIPT} {IMAGE} {BIDI}"))

    async def bury(self, channel: str, consumer: str, number: int, error: Callable[[Job], Exception]) -> None:
        """A failed attempt, and another one that ends it."""
        first = await claim(self.store, number, channel=channel, consumer=consumer)
        await self.store.leases.retry([Retry(job, None, describe(error(job))) for job in first])
        again = await claim(self.store, number, channel=channel, consumer=consumer)
        assert len(again) == number
        await self.store.leases.bury(
            [Burial(job, Reason.MAX_ATTEMPTS, describe(error(job))) for job in again]
        )

    async def dead(self, channel: str = "orders") -> int:
        return sum(each.count for each in await self.store.deadletters.counts() if each.channel == channel)

    @asynccontextmanager
    async def worker(self, channel: str = "orders", consumer: str = "billing") -> AsyncIterator[None]:
        """Somebody for whom everything succeeds."""

        async def work() -> None:
            while True:
                for job in await self.bus.poll(channel, consumer, limit=50):
                    await self.bus.finalize(job, success=True)
                await asyncio.sleep(0.05)

        task = asyncio.create_task(work())
        yield
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


def _no_route(job: Job) -> Exception:
    return ConnectionError(f"no route to 10.0.0.{job.id}")


@asynccontextmanager
async def stage(url: str, *, open: bool) -> AsyncIterator[Stage]:  # noqa: A002 - the setting's name
    """A system on a free port, without what needs Spark; where it is `open`, without signing in."""
    async with holdfast.connect(url) as bus:
        config = Config.model_validate({"server": {"port": 0, "open": open}})
        supervisor = assemble(bus, config, Choice(sweeper=False, archiver=False, ingest=False), Supervisor())
        [http] = [each.service for each in supervisor.services if isinstance(each.service, HttpService)]
        stop = asyncio.Event()
        task = asyncio.create_task(supervisor.run(stop))
        try:
            yield Stage(bus, http.url, supervisor)
        finally:
            stop.set()
            await task
