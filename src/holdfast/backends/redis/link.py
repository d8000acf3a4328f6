"""A link: one connection that carries many calls at once.

While one batch of commands is on its way, the next one gathers, so that calls of many tasks share round trips
and, with `appendfsync always`, the server's flush to disk. Connecting, TLS and parsing are redis-py's.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import hiredis
from redis.asyncio.connection import AbstractConnection, ConnectionPool
from redis.exceptions import ConnectionError as Disconnected
from redis.exceptions import RedisError, ResponseError

_IDLE = 0.5

Argument = str | bytes | int | float
Command = Sequence[Argument]
OnConnect = Callable[[AbstractConnection], Awaitable[None]]
"""Called with every new connection before any call: the server may be another one by now."""


class Link:
    """Sends commands in the order of the calls; replies come back in that order. Reconnects by itself."""

    def __init__(self, pool: ConnectionPool, on_connect: OnConnect, patience: float) -> None:
        self._on_connect, self._patience = on_connect, patience
        self._connection: AbstractConnection = pool.make_connection()  # type: ignore[no-untyped-call]  # redis-py
        self._outbox: list[bytes] = []
        self._queued: list[asyncio.Future[Any]] = []
        self._waiting: deque[asyncio.Future[Any]] = deque()
        self._used = 0.0
        self._outdated = False
        self._sender: asyncio.Task[None] | None = None
        self._receiver: asyncio.Task[None] | None = None

    @property
    def load(self) -> int:
        """Calls that have no answer yet."""
        return len(self._queued) + len(self._waiting)

    async def call(self, *command: Argument) -> Any:
        """One command and its reply."""
        return await self._enqueue(_pack(command))

    async def together(self, *commands: Command) -> list[Any]:
        """Several commands with nothing of ours between them, and their replies."""
        packed = [_pack(command) for command in commands]  # all, before one of a transaction is on its way
        return list(await asyncio.gather(*map(self._enqueue, packed)))

    def renew(self) -> None:
        """Leave this connection to the calls that are on their way: the next ones get another."""
        self._outdated = True

    async def close(self) -> None:
        """Disconnect; calls without an answer fail."""
        for task in (self._sender, self._receiver):
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        await self._fail(Disconnected("closed"))

    def _enqueue(self, packed: bytes) -> asyncio.Future[Any]:
        future = asyncio.get_running_loop().create_future()
        self._outbox.append(packed)
        self._queued.append(future)
        if self._sender is None or self._sender.done():
            self._sender = asyncio.create_task(self._send())
        return future

    async def _send(self) -> None:
        while self._outbox:
            try:
                await self._connected()
                batch, self._outbox = self._outbox, []
                self._waiting.extend(self._queued)
                self._queued.clear()
                if self._receiver is None or self._receiver.done():
                    self._receiver = asyncio.create_task(self._receive())
                async with asyncio.timeout(self._patience):
                    await self._connection.send_packed_command([b"".join(batch)])
            except AttributeError as error:  # redis-py's way to say that the receiver has closed it meanwhile
                await self._fail(Disconnected(f"closed while a call was on its way: {error}"))
            except Exception as error:  # whatever it was, nobody may wait for ever
                await self._fail(error)

    async def _connected(self) -> None:
        """A connection that the server has closed while nobody used it is no reason to fail a call."""
        if self._outdated:
            self._outdated = False
            if self._receiver is not None:
                await asyncio.wait([self._receiver])
            await self._connection.disconnect(nowait=True)
        now = asyncio.get_running_loop().time()
        if self._connection.is_connected and not self._waiting and now - self._used > _IDLE:
            try:
                stale = await self._connection.can_read()
            except (RedisError, OSError):
                stale = True
            if stale:
                await self._connection.disconnect(nowait=True)
        self._used = now
        if not self._connection.is_connected:
            async with asyncio.timeout(self._patience):
                await self._connection.connect()  # type: ignore[no-untyped-call]  # redis-py
                await self._on_connect(self._connection)

    async def _receive(self) -> None:
        while self._waiting:
            reply: Any
            try:
                async with asyncio.timeout(self._patience):
                    reply = await self._connection.read_response()
            except ResponseError as error:
                reply = error
            except Exception as error:  # see above
                await self._fail(error)
                continue
            future = self._waiting.popleft()
            if future.done():  # its caller has gone
                continue
            if isinstance(reply, Exception):
                future.set_exception(reply)
            else:
                future.set_result(reply)

    async def _fail(self, error: Exception) -> None:
        """The connection is gone: nobody can know what became of the calls on it."""
        lost = [*self._waiting, *self._queued]
        self._waiting.clear()
        self._queued.clear()
        self._outbox.clear()
        for future in lost:
            if not future.done():
                future.set_exception(error)
        await self._connection.disconnect(nowait=True)


def _pack(command: Command) -> bytes:
    packed: bytes = hiredis.pack_command(tuple(command))  # type: ignore[arg-type]  # takes bytes too
    return packed
