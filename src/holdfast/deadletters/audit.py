"""The audit: who did what, on `{namespace}.events.system.audit`. No payloads, no secrets."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

from holdfast.contracts import Backend
from holdfast.deadletters.items import Filter
from holdfast.deadletters.operation import Operation
from holdfast.model.errors import IdConflict
from holdfast.model.event import LogEntry
from holdfast.upkeep.announcements import Audited, announce
from holdfast.upkeep.state import Secret

_LONGEST = 500
_REFUSED = 2

_WINDOWS = tuple(timedelta(minutes=15 * 20**power) for power in range(-1, 5))
_PAGE = 1_000


@dataclass(slots=True)
class _Refusals:
    """Calls of one actor that were refused since then."""

    began: float
    calls: int = 0


class Audit:
    """Writes the audit of one deployment, on its first store."""

    def __init__(
        self, backend: Backend, namespace: str = "gbe", clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._backend, self._namespace, self._clock = backend, namespace, clock
        self._secret = Secret(backend, namespace)
        self._refused: dict[str, _Refusals] = {}

    async def latest(self, limit: int) -> list[LogEntry]:
        """What was done last, the latest first. A log is read forwards: look back until there is enough."""
        channel = f"{self._namespace}.events.system.{Audited.topic}"
        now, start = await self._backend.now(), None
        for window in _WINDOWS:
            start = await self._backend.log.seek(channel, now - window)
            if (await self._backend.log.behind(channel, start, limit)).events >= limit:
                break
        else:
            start = None
        found: list[LogEntry] = []
        while page := await self._backend.log.read(channel, start, _PAGE):
            found, start = (found + page)[-limit:], page[-1].position
        return found[::-1]

    async def did(
        self, actor: str, action: str, target: str, outcome: str = "done", *, wanted: Filter | None = None
    ) -> None:
        """Somebody did something that is over."""
        shown = None if wanted is None else wanted.to_json()
        said = [_safe(each) for each in (actor, action, target, outcome)]
        audited = Audited(actor=said[0], action=said[1], target=said[2], filter=shown, outcome=said[3])
        await announce(self._backend, self._namespace, audited)

    async def refused(self, actor: str, action: str, target: str, reason: str) -> None:
        """Somebody was refused. The actor is as much as is known of them, never a token.

        Two entries a minute are made for each of them here, and with the next call that is refused after that
        minute, whoever made it, one more that says how many there were besides.
        """
        await self._report_suppressed()
        minute = self._refused.setdefault(actor, _Refusals(self._clock()))
        minute.calls += 1
        if minute.calls <= _REFUSED:
            await self.did(actor, action, target, f"refused: {reason}")

    async def _report_suppressed(self) -> None:
        now = self._clock()
        for actor, minute in [(who, each) for who, each in self._refused.items() if now - each.began >= 60]:
            del self._refused[actor]
            if (more := minute.calls - _REFUSED) > 0:
                outcome = f"refused: {more} more calls within a minute; the server's log has some"
                await self.did(actor, "call", "several", outcome)

    async def asked(self, operation: Operation, actor: str, how: str = "asked") -> None:
        """An operation was asked for, cancelled or resumed, by whoever says so."""
        name = f"{operation.id}:{how}:{operation.revision}"
        await self._about(operation, actor, how, name)

    async def ended(self, operation: Operation) -> None:
        """An operation ended. Repeated by whoever goes on after a crash, it is announced once."""
        outcome = f"{operation.state}: {operation.outcome}"
        name = f"{operation.id}:{operation.state}:{operation.progress.looked_at}"
        await self._about(operation, operation.actor, outcome, name)

    async def _about(self, operation: Operation, actor: str, outcome: str, name: str) -> None:
        request = operation.request
        audited = Audited(
            actor=actor,
            action=request.kind,
            target=request.target,
            filter=None if request.filter is None else request.filter.to_json(),
            outcome=outcome,
            operation=operation.id,
        )
        event_id = await self._secret.sign("audit", name)  # whoever knows the operation cannot use it up
        try:
            await announce(self._backend, self._namespace, audited, event_id)
        except IdConflict:
            return  # it was announced, in other words


def _safe(text: str) -> str:
    """Text as an event can carry it, whoever sent it: of bounded length, and encodable."""
    return text[:_LONGEST].encode("utf-8", "replace").decode()
