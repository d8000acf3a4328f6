"""Live pages: a piece of a page, sent anew with every look, as server-sent events."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from holdfast.model.errors import HoldfastError
from holdfast.server.auth.caller import Caller
from holdfast.server.auth.guard import check_again
from holdfast.server.context import System
from holdfast.server.pages.watch import Watch


def live(system: System, caller: Caller, watch: Watch, piece: Callable[[], str]) -> StreamingResponse:
    """The piece, now and after every look, until the reader leaves."""

    async def pieces() -> AsyncGenerator[str, None]:
        async with aclosing(watch.views()) as views:
            async for _ in views:
                yield piece()

    return LivePage(system, caller, pieces())


class LivePage(StreamingResponse):
    """Pieces of a page as they come, until the reader leaves, is not let in any more, the server stops, or
    there are no more. The page asks again then, unless something in the last piece is marked `data-ended`.

    What the first piece raises is the answer; what a later one raises ends the stream.
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
            yield message(self._next)
            self._next = await self._following()

    async def _following(self) -> str | None:
        try:
            piece = await anext(self._pieces, None)
            await check_again(self._system, self._caller)
        except HoldfastError:
            return None
        return None if self._system.supervisor.stopping else piece


def message(text: str) -> str:
    """One server-sent event."""
    return "".join(f"data: {line}\n" for line in text.splitlines()) + "\n"
