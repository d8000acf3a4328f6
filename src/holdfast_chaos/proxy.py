"""The proxy: a TCP way to one server that can be cut, slowed down, and torn.

What is held back is not lost, as on a real line: the bytes that a cut caught arrive when it heals, late, and
also when their sender has given up and asked again meanwhile. So a server may see requests twice and out of
turn.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Iterator
from contextlib import suppress
from typing import Self
from urllib.parse import urlsplit, urlunsplit

_BLOCK = 1 << 16
_TICK = 0.05
_ESTABLISHED = 1  # from linux/tcp.h
_AT_ONCE = struct.pack("ii", 1, 0)
"""For SO_LINGER: closing sends a reset, and nothing that still waits to be sent."""


class Proxy:
    """Stands for one server at a port of its own, which stays the same. Use it in one event loop."""

    def __init__(self, host: str, port: int) -> None:
        self.dropped = 0
        """How many replies `drop_reply` has swallowed."""
        self._server = (host, port)
        # Bound and never listening: it keeps the port ours while connections are refused.
        self._place = _socket(0)
        self.port: int = self._place.getsockname()[1]
        self._listener: asyncio.Server | None = None
        self._connections: set[_Connection] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._requests, self._replies = asyncio.Event(), asyncio.Event()
        self._delay, self._rate, self._to_drop, self._wanted = 0.0, 0, 0, b""

    def url(self, url: str) -> str:
        """The URL of the server, by way of this proxy."""
        parts = urlsplit(url)
        login, at, _ = parts.netloc.rpartition("@")
        return urlunsplit(parts._replace(netloc=f"{login}{at}127.0.0.1:{self.port}"))

    async def __aenter__(self) -> Self:
        await self.heal()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.refuse()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._place.close()

    async def cut(self) -> None:
        """Nothing goes either way, without a word; who connects anew gets no answer."""
        self._requests.clear()
        self._replies.clear()

    async def cut_requests(self) -> None:
        """Nothing reaches the server; what it says still comes back."""
        self._requests.clear()

    async def cut_replies(self) -> None:
        """The server hears and does everything; no answer comes back."""
        self._replies.clear()

    async def delay(self, seconds: float) -> None:
        """Everything takes so much longer, each way."""
        self._delay = seconds

    async def drip(self, bytes_per_second: int) -> None:
        """Each connection carries only so much, each way."""
        self._rate = bytes_per_second

    async def refuse(self) -> None:
        """Reset all connections, and refuse new ones."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        await self.reset()

    async def reset(self) -> None:
        """Reset all connections at once, in the middle of whatever they carry. New ones are served."""
        for connection in list(self._connections):
            connection.reset()

    async def drop_reply(self, count: int = 1, containing: bytes = b"") -> None:
        """Swallow the answer to the next request (with those bytes in it), and reset its connection.

        So `count` times. Where one request at a time is under way, the server has applied it by then.
        """
        self._to_drop, self._wanted = count, containing

    async def heal(self) -> None:
        """Be a plain way to the server again. What a cut held back goes on its way."""
        self._delay, self._rate, self._to_drop = 0.0, 0, 0
        for connection in self._connections:
            connection.doomed = False
        if self._listener is None:
            self._listener = await asyncio.start_server(self._accept, sock=_socket(self.port))
        self._requests.set()
        self._replies.set()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = _Connection(writer)
        self._connections.add(connection)
        try:
            await self._requests.wait()
            if connection.abandoned:  # it never reached the server, unlike what was sent on an older one
                return
            far_reader, far_writer = await asyncio.open_connection(*self._server)
            connection.add(far_writer)
            async with asyncio.TaskGroup() as both:
                both.create_task(self._carry_requests(reader, far_writer, connection))
                both.create_task(self._carry_replies(far_reader, writer, connection))
        except* OSError:  # one end is gone, and so is the other
            connection.reset()
        finally:
            connection.close()
            self._connections.discard(connection)

    async def _carry_requests(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, connection: _Connection
    ) -> None:
        while block := await reader.read(_BLOCK):
            await asyncio.sleep(self._delay)
            for piece in self._pieces(block):
                await self._requests.wait()
                if self._to_drop and not connection.doomed and self._wanted in block:
                    self._to_drop -= 1
                    connection.doomed = True
                await self._send(piece, writer)
        writer.write_eof()

    async def _carry_replies(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, connection: _Connection
    ) -> None:
        while block := await reader.read(_BLOCK):
            if connection.doomed:
                self.dropped += 1
                connection.reset()
                return
            await asyncio.sleep(self._delay)
            for piece in self._pieces(block):
                await self._replies.wait()
                await self._send(piece, writer)
        await self._replies.wait()
        writer.write_eof()

    def _pieces(self, block: bytes) -> Iterator[bytes]:
        at = 0
        while at < len(block):
            size = max(1, int(self._rate * _TICK)) if self._rate else len(block)
            yield block[at : at + size]
            at += size

    async def _send(self, piece: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(piece)
        await writer.drain()
        if self._rate:
            await asyncio.sleep(len(piece) / self._rate)


class _Connection:
    """A client's connection to us, and ours to the server."""

    def __init__(self, client: asyncio.StreamWriter) -> None:
        self.doomed = False
        """Whether its next reply is to be swallowed."""
        self._ends = [client]

    @property
    def abandoned(self) -> bool:
        """Whether the client has closed its end, as far as the system tells."""
        if not hasattr(socket, "TCP_INFO"):
            return False
        [client] = self._ends
        state: bytes = client.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)
        return state[0] != _ESTABLISHED

    def add(self, server: asyncio.StreamWriter) -> None:
        self._ends.append(server)

    def reset(self) -> None:
        """End both without a farewell."""
        for end in self._ends:
            with suppress(OSError):  # closed already
                end.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _AT_ONCE)
            end.transport.abort()

    def close(self) -> None:
        for end in self._ends:
            end.close()


def _socket(port: int) -> socket.socket:
    place = socket.socket()
    place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    place.bind(("127.0.0.1", port))
    return place
