"""Live pages: a piece of a page, sent anew with every look, as server-sent events."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

from fastapi.responses import StreamingResponse

from holdfast.server.pages.watch import Watch


def live(watch: Watch, piece: Callable[[], str]) -> StreamingResponse:
    """The piece, now and after every look, until the reader leaves."""

    async def pieces() -> AsyncGenerator[str, None]:
        async with aclosing(watch.views()) as views:
            async for _ in views:
                yield piece()

    return stream(pieces())


def stream(pieces: AsyncGenerator[str, None]) -> StreamingResponse:
    """Pieces of a page as they come, until the reader leaves or there are no more. The page asks again then,
    unless something in the last piece is marked `data-ended`."""

    async def events() -> AsyncGenerator[str, None]:
        async with aclosing(pieces):
            async for piece in pieces:
                yield message(piece)

    return StreamingResponse(events(), media_type="text/event-stream", headers={"X-Accel-Buffering": "no"})


def message(text: str) -> str:
    """One server-sent event."""
    return "".join(f"data: {line}\n" for line in text.splitlines()) + "\n"
