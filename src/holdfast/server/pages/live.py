"""Live pages: a piece of a page, sent anew with every look, as server-sent events."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, suppress

from fastapi.responses import StreamingResponse

from holdfast.server.auth.caller import Caller
from holdfast.server.auth.guard import check_again
from holdfast.server.context import System
from holdfast.server.pages.watch import Watch
from holdfast.server.refusals import Unauthorized


def live(system: System, caller: Caller, watch: Watch, piece: Callable[[], str]) -> StreamingResponse:
    """The piece, now and after every look, until the reader leaves."""

    async def pieces() -> AsyncGenerator[str, None]:
        async with aclosing(watch.views()) as views:
            async for _ in views:
                yield piece()

    return stream(system, caller, pieces())


def stream(system: System, caller: Caller, pieces: AsyncGenerator[str, None]) -> StreamingResponse:
    """Pieces of a page as they come, until the reader leaves, is not let in any more, or there are no more.
    The page asks again then, unless something in the last piece is marked `data-ended`."""

    async def events() -> AsyncGenerator[str, None]:
        async with aclosing(pieces):
            with suppress(Unauthorized):
                async for piece in pieces:
                    await check_again(system, caller)
                    yield message(piece)

    return StreamingResponse(events(), media_type="text/event-stream", headers={"X-Accel-Buffering": "no"})


def message(text: str) -> str:
    """One server-sent event."""
    return "".join(f"data: {line}\n" for line in text.splitlines()) + "\n"
