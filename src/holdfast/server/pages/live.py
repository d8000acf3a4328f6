"""Live pages: the service that takes snapshots while somebody looks, and pages as server-sent events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

from fastapi import Request
from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from holdfast.bus.partitions import Partitions
from holdfast.model.errors import HoldfastError
from holdfast.server.auth.caller import Caller
from holdfast.server.auth.guard import check_again
from holdfast.server.pages.snapshot import Snapshot, SnapshotHistory, take_snapshot
from holdfast.server.system import System

EVERY, IDLE = 2.0, 10.0


class SnapshotService:
    """Takes a snapshot every other second while somebody looks at a page, else now and then."""

    name = "watch"

    def __init__(self, partitions: Partitions, every: float = EVERY, idle: float = IDLE) -> None:
        self._partitions, self._every, self._idle = partitions, every, idle
        self.history = SnapshotHistory()
        self._taken = asyncio.Event()
        self._stopped = False
        self._viewers = 0
        self._woken = asyncio.Event()

    async def run(self) -> None:
        """Take snapshots until cancelled."""
        while True:
            await self.take()
            self._woken.clear()
            pause = self._every if self._viewers else self._idle
            try:
                async with asyncio.timeout(pause):
                    await self._woken.wait()
            except TimeoutError:
                continue

    async def take(self) -> Snapshot:
        """Take one now."""
        snapshot = await take_snapshot(self._partitions, self.history.latest)
        self.history.add(snapshot)
        self._notify()
        return snapshot

    def stop(self) -> None:
        """End all streams."""
        self._stopped = True
        self._notify()

    def _notify(self) -> None:
        taken, self._taken = self._taken, asyncio.Event()
        taken.set()

    async def stream(self) -> AsyncGenerator[Snapshot, None]:
        """The latest snapshot, then every one that is taken, until the service is stopped."""
        self._viewers += 1
        self._woken.set()
        try:
            if self.history.latest is not None:
                yield self.history.latest
            while not self._stopped:
                await self._taken.wait()
                if self.history.latest is not None:
                    yield self.history.latest
        finally:
            self._viewers -= 1

    def status(self) -> str:
        """How many viewers there are."""
        return f"{self._viewers} watching" if self._viewers else "nobody is watching"


async def snapshots_of(request: Request) -> SnapshotService:
    """The application's service, with one snapshot at least."""
    snapshots: SnapshotService = request.app.state.snapshots
    if snapshots.history.latest is None:
        await snapshots.take()
    return snapshots


def live_page(
    system: System, caller: Caller, snapshots: SnapshotService, piece: Callable[[], str]
) -> StreamingResponse:
    """The piece, now and after every snapshot, until the viewer leaves."""

    async def pieces() -> AsyncGenerator[str, None]:
        async with aclosing(snapshots.stream()) as stream:
            async for _ in stream:
                yield piece()

    return LivePage(system, caller, pieces())


class LivePage(StreamingResponse):
    """Pieces of a page as they come, until the viewer leaves, is not let in any more, the server stops, or
    there are no more. The page asks again then, unless something in the last piece is marked `data-ended`.

    What the first piece raises is the response; what a later one raises ends the stream.
    """

    def __init__(self, system: System, caller: Caller, pieces: AsyncGenerator[str, None]) -> None:
        super().__init__(self._events(), media_type="text/event-stream", headers={"X-Accel-Buffering": "no"})
        self._system, self._caller, self._pieces = system, caller, pieces
        self._next: str | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with aclosing(self._pieces):
            with self._system.live.take(self._caller.actor):
                self._next = await anext(self._pieces, None)
                await super().__call__(scope, receive, send)

    async def _events(self) -> AsyncGenerator[str, None]:
        while self._next is not None:
            yield _message(self._next)
            self._next = await self._following()

    async def _following(self) -> str | None:
        try:
            piece = await anext(self._pieces, None)
            await check_again(self._system, self._caller)
        except HoldfastError:
            return None
        return None if self._system.supervisor.stopping else piece


def _message(text: str) -> str:
    """One server-sent event."""
    return "".join(f"data: {line}\n" for line in text.splitlines()) + "\n"
