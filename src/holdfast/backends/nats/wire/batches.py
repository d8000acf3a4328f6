"""Atomic batches: messages that one stream takes all or none, each with the revision that it replaces."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Sequence
from typing import Any, NamedTuple

import orjson

from holdfast.backends.nats.wire import subjects
from holdfast.backends.nats.wire.connection import PATIENCE, NatsConnection
from holdfast.model.backoff import backoff_seconds
from holdfast.model.errors import HoldfastError, Overloaded, TooLarge, Unavailable

MOST = 1000
"""Messages in one batch: the server's default limit."""
MOST_BYTES = 16_000_000
_STALE, _UNFINISHED, _FULL = {10071, 10164}, {10176, 10210}, {10002, 10023, 10047, 10054, 10077}
_UNDER_WAY = 2
_FIRST_WAIT, _LONGEST_WAIT = 0.005, 0.3
_HEADERS = 1000  # bytes that they take at most where an event's attributes are not among them


class Stale(Exception):
    """Some message's subject had moved on: the whole batch was refused and changed nothing."""


class Incomplete(Exception):
    """The server did not get every message, or has too many batches under way: nothing was changed."""


class BatchMessage(NamedTuple):
    """One message of a batch. `expect` is the sequence that its subject must stand at, 0 for none."""

    subject: str
    data: bytes = b""
    headers: dict[str, str] = {}  # noqa: RUF012 - nobody writes to it
    expect: int | None = None


def state(subject: str, data: bytes, expect: int | None = None, ttl: int | None = None) -> BatchMessage:
    """Return a message that replaces every older one of its subject, for `ttl` seconds or for good."""
    headers = {subjects.ROLLUP: "sub"}
    if ttl is not None:
        headers[subjects.TTL] = f"{ttl}s"
    return BatchMessage(subject, data, headers, expect)


def anew(subject: str, data: bytes, expect: int | None = None) -> BatchMessage:
    """Return a message of a subject that has none, or an empty one which is about to expire.

    It removes none: of one that expires in the moment in which it is replaced the server removes the
    successor as well (seen with 2.15.1).
    """
    return BatchMessage(subject, data, {}, expect)


class Batches:
    """Sends batches. The server takes 50 unfinished ones on a stream, from all clients together."""

    def __init__(self, connection: NatsConnection) -> None:
        self._connection = connection

    async def commit(self, messages: Sequence[BatchMessage], generation: int | None = None) -> int:
        """Return the sequence of the last message; the others stand right before it, in their order.

        All or none, and with a `generation` on that connection only: behind a newer one may be a server that
        lacks what these were decided on. Raises `Stale`, `Incomplete`, `Overloaded`, `TooLarge`,
        `Unavailable`.
        """
        reply = await self._send(messages, generation)
        error = reply.get("error")
        if error is None:
            return int(reply["seq"])
        code, text = error.get("err_code"), error.get("description", "")
        if code in _STALE:
            raise Stale(text)
        if code in _UNFINISHED:
            raise Incomplete(text)
        if code in _FULL:
            raise Overloaded(f"the stream {subjects.STREAM} is full: {text}; raise its limits, or trim")
        if error.get("code", 0) >= 500:
            raise Unavailable(f"NATS did not take the batch: {text}")
        raise HoldfastError(f"NATS refused a batch of {len(messages)} messages: {text} ({code})")

    async def _send(self, messages: Sequence[BatchMessage], generation: int | None) -> dict[str, Any]:
        name = secrets.token_hex(11)
        async with self._connection.ask() as (client, reply, replies):
            if generation not in (None, self._connection.generation):
                raise Unavailable("the connection to NATS was lost before this was sent; try again")
            _check_size(messages, client.max_payload)
            for number, message in enumerate(messages, start=1):
                headers = dict(message.headers)
                if len(messages) > 1:  # one alone needs no batch, which costs the server a store of its own
                    headers |= {subjects.BATCH: name, subjects.BATCH_SEQUENCE: str(number)}
                if message.expect is not None:
                    headers[subjects.EXPECT] = str(message.expect)
                if number < len(messages):
                    await client.publish(message.subject, message.data, headers=headers)
                else:
                    if len(messages) > 1:
                        headers[subjects.COMMIT] = "1"
                    await client.publish(message.subject, message.data, reply=reply, headers=headers)
            last = await replies.last(2 * PATIENCE)
        if last.headers.get("Status") == "503":
            raise Incomplete("no stream captures the last message")
        found: dict[str, Any] = orjson.loads(last.data)
        return found


def _check_size(messages: Sequence[BatchMessage], most: int) -> None:
    """Before anything is sent: half a batch would lie on the server until that gives it up."""
    for message in messages:
        if len(message.data) > most - _HEADERS:
            raise TooLarge(
                f"{message.subject} would have {len(message.data)} bytes, and the server's max_payload is "
                f"{most}; raise that"
            )


class _Waiting(NamedTuple):
    messages: Sequence[BatchMessage]
    generation: int | None
    done: asyncio.Future[int]

    @property
    def size(self) -> int:
        return sum(len(message.data) for message in self.messages)

    def fences(self) -> set[str]:
        return {message.subject for message in self.messages if message.expect is not None}


class BatchCommitter:
    """Makes one batch of what many tasks commit at the same time.

    A batch costs the server a store of its own, some milliseconds on a disk, whatever its size. So while two
    are under way the next ones wait and travel together. A refused group is tried again one by one, so that
    each caller hears of its own.
    """

    def __init__(self, batches: Batches) -> None:
        self._batches = batches
        self._waiting: list[_Waiting] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def commit(self, messages: Sequence[BatchMessage], generation: int | None = None) -> int:
        """Do as `Batches.commit`. The batch goes on when the caller gives up.

        A message alone is no batch: it waits for none.
        """
        if len(messages) == 1:
            return await self._batches.commit(messages, generation)
        done: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Waiting(messages, generation, done))
        self._start()
        return await done

    def _start(self) -> None:
        while self._waiting and len(self._tasks) < _UNDER_WAY:
            task = asyncio.create_task(self._run(self._group()))
            self._tasks.add(task)
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._start()

    def _group(self) -> list[_Waiting]:
        """Take the first ones that fit. Of two that fence the same subject one would be stale."""
        group, rest, messages, size = list[_Waiting](), list[_Waiting](), 0, 0
        fenced: set[str] = set()
        for each in self._waiting:
            messages, size = messages + len(each.messages), size + each.size
            fits = messages <= MOST and size <= MOST_BYTES and not fenced & each.fences()
            if rest or (group and not (fits and each.generation == group[0].generation)):
                rest.append(each)
                continue
            group.append(each)
            fenced |= each.fences()
        self._waiting = rest
        return group

    async def _run(self, group: list[_Waiting]) -> None:
        try:
            messages = [message for each in group for message in each.messages]
            seq = await self._batches.commit(messages, group[0].generation)
        except (Stale, Incomplete, Overloaded, TooLarge) as error:
            if len(group) > 1:
                for each in group:
                    await self._run([each])
            else:
                _fail(group, error)
        except Exception as error:
            _fail(group, error)
        else:
            for each in reversed(group):
                if not each.done.done():
                    each.done.set_result(seq)
                seq -= len(each.messages)


def _fail(group: list[_Waiting], error: Exception) -> None:
    for each in group:
        if not each.done.done():
            each.done.set_exception(error)


async def backoff(turn: int, first: float = _FIRST_WAIT, longest: float = _LONGEST_WAIT) -> None:
    """Wait after a failed compare-and-set: with jitter, and longer after each."""
    await asyncio.sleep(backoff_seconds(turn + 1, first, longest, jitter=1.0))
