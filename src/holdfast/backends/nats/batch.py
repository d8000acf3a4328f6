"""Atomic batches: messages that one stream takes all or none, each with the revision that it replaces."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any, NamedTuple

import orjson

from holdfast.backends.nats import subjects
from holdfast.backends.nats.link import PATIENCE, Link
from holdfast.model.errors import HoldfastError, Overloaded, TooLarge, Unavailable

MOST = 1000
"""Messages in one batch: the server's default limit."""
MOST_BYTES = 16_000_000
_STALE, _UNFINISHED, _FULL = {10071, 10164}, {10176, 10210}, {10002, 10023, 10047, 10054, 10077}
_HEADERS = 1000  # bytes that they take at most where an event's attributes are not among them


class Stale(Exception):
    """Some message's subject had moved on: the whole batch was refused and changed nothing."""


class Incomplete(Exception):
    """The server did not get every message, or has too many batches under way: nothing was changed."""


class Message(NamedTuple):
    """One message of a batch. `expect` is the sequence that its subject must stand at, 0 for none."""

    subject: str
    data: bytes = b""
    headers: dict[str, str] = {}  # noqa: RUF012 - nobody writes to it
    expect: int | None = None


def state(subject: str, data: bytes, expect: int | None = None, ttl: int | None = None) -> Message:
    """A message that replaces every older one of its subject, for `ttl` seconds or for good."""
    headers = {subjects.ROLLUP: "sub"}
    if ttl is not None:
        headers[subjects.TTL] = f"{ttl}s"
    return Message(subject, data, headers, expect)


class Batches:
    """Sends batches. The server takes 50 unfinished ones on a stream, from all clients together."""

    def __init__(self, link: Link) -> None:
        self._link = link

    async def commit(self, messages: Sequence[Message]) -> int:
        """The sequence of the last message; the others stand right before it, in their order."""
        answer = await self._send(messages)
        error = answer.get("error")
        if error is None:
            return int(answer["seq"])
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

    async def _send(self, messages: Sequence[Message]) -> dict[str, Any]:
        name = secrets.token_hex(11)
        async with self._link.ask() as (client, reply, answer):
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
            last = await answer.within(2 * PATIENCE)
        if last.headers.get("Status") == "503":
            raise Incomplete("no stream captures the last message")
        found: dict[str, Any] = orjson.loads(last.data)
        return found


def _check_size(messages: Sequence[Message], most: int) -> None:
    """Before anything is sent: half a batch would lie on the server until that gives it up."""
    for message in messages:
        if len(message.data) > most - _HEADERS:
            raise TooLarge(
                f"{message.subject} would have {len(message.data)} bytes, and the server's max_payload is "
                f"{most}; raise that"
            )
