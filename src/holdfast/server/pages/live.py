"""Live pages: a piece of a page, sent anew with every look, as server-sent events."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

from fastapi.responses import StreamingResponse

from holdfast.server.pages.watch import Watch

ENDED = "ended"
"""The event that tells a page to close its stream: `hx-sse:close="ended"`."""


def live(watch: Watch, piece: Callable[[], str]) -> StreamingResponse:
    """The piece, now and after every look, until the reader leaves."""

    async def pieces() -> AsyncGenerator[str, None]:
        async with aclosing(watch.views()) as views:
            async for _ in views:
                yield piece()

    return stream(pieces())


def stream(pieces: AsyncGenerator[str, None]) -> StreamingResponse:
    """Pieces of a page as they come, until there are no more or the reader leaves."""

    async def events() -> AsyncGenerator[str, None]:
        async with aclosing(pieces):
            async for piece in pieces:
                yield message(piece)
        yield f"event: {ENDED}\ndata: {ENDED}\n\n"

    return StreamingResponse(events(), media_type="text/event-stream", headers={"X-Accel-Buffering": "no"})


def message(text: str) -> str:
    """One server-sent event."""
    return "".join(f"data: {line}\n" for line in text.splitlines()) + "\n"
