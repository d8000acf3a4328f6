"""Forms: the fields of a URL-encoded body, decoded a piece at a time.

A megabyte of escapes, decoded at once, would hold up everybody and take seventy times its size.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from urllib.parse import unquote_to_bytes

URL_ENCODED = "application/x-www-form-urlencoded"
PIECE = 16 << 10


async def fields(body: bytes) -> list[tuple[str, str]]:
    """Names and values in their order."""
    found, since = [], 0
    for field in filter(None, body.split(b"&")):
        halves = []
        for half in field.partition(b"=")[::2]:
            decoded = []
            for piece in _pieces(half):
                decoded.append(unquote_to_bytes(piece.replace(b"+", b" ")))
                since += len(piece)
                if since >= PIECE:
                    await asyncio.sleep(0)
                    since = 0
            halves.append(b"".join(decoded).decode(errors="replace"))
        found.append((halves[0], halves[1]))
    return found


def _pieces(text: bytes) -> Iterator[bytes]:
    """A text in pieces that cut no escape."""
    begin = 0
    while begin < len(text):
        end = begin + PIECE
        cut = text.rfind(b"%", end - 2, end)
        if cut != -1:
            end = cut
        yield text[begin:end]
        begin = end
