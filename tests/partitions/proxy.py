"""A TCP proxy between a client and a server, which loses what a test wants to be lost."""

from __future__ import annotations

import asyncio
from typing import Self
from urllib.parse import urlsplit, urlunsplit


class Proxy:
    """Stands in for one server at a port of its own.

    `drop_reply_to` loses one answer after the server has done its work; `mute` lets requests through and no
    answer back, on old and new connections alike; `cut` ends all connections and refuses new ones.
    """

    def __init__(self, url: str) -> None:
        self._parts = urlsplit(url)
        self._server: asyncio.Server | None = None
        self._port = 0
        self._pattern: bytes | None = None
        self._muted = False
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.dropped = 0
        """How many answers were lost."""
        self.cut_after_drop = False
        """Whether a lost answer is also the end of all connections."""

    @property
    def url(self) -> str:
        """The server's URL, by way of this proxy."""
        account = self._parts.netloc.rpartition("@")[0]
        return urlunsplit(self._parts._replace(netloc=f"{account}@127.0.0.1:{self._port}"))

    async def __aenter__(self) -> Self:
        await self.mend()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.cut()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=5)

    def drop_reply_to(self, pattern: bytes) -> None:
        """Once: forward the request that contains `pattern`, wait for the answer, lose it, and hang up."""
        self._pattern = pattern

    def mute(self) -> None:
        """From now on the server hears everything, and nothing comes back."""
        self._muted = True

    async def cut(self) -> None:
        """End every connection, and refuse new ones."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for writer in list(self._writers):
            writer.transport.abort()

    async def mend(self) -> None:
        """Serve again as if nothing had been. What was muted stays cut off."""
        if self._muted:
            await self.cut()
        self._muted = False
        if self._server is None:
            self._server = await asyncio.start_server(self._serve, "127.0.0.1", self._port)
            self._port = self._server.sockets[0].getsockname()[1]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        ends = [writer]
        self._writers.add(writer)
        try:
            far_reader, far_writer = await asyncio.open_connection(self._parts.hostname, self._parts.port)
            ends.append(far_writer)
            self._writers.add(far_writer)
            doomed = asyncio.Event()
            await asyncio.gather(
                self._forward(reader, far_writer, doomed), self._answer(far_reader, writer, doomed)
            )
        except OSError:
            pass  # one end is gone, and so is the other
        finally:
            for end in ends:
                end.transport.abort()
                self._writers.discard(end)
            self._tasks.discard(task)

    async def _forward(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, doomed: asyncio.Event
    ) -> None:
        while block := await reader.read(1 << 16):
            if self._pattern is not None and self._pattern in block:
                self._pattern = None
                doomed.set()
            writer.write(block)
            await writer.drain()
        writer.transport.abort()

    async def _answer(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, doomed: asyncio.Event
    ) -> None:
        while block := await reader.read(1 << 16):
            if doomed.is_set():
                self.dropped += 1
                if self.cut_after_drop:
                    await self.cut()
                break
            if not self._muted:
                writer.write(block)
                await writer.drain()
        writer.transport.abort()
