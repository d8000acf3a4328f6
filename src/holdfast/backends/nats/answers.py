"""Answers: the messages that the server sends to one question."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from typing import NamedTuple

from nats.aio.client import Client

from holdfast.backends.nats import subjects
from holdfast.backends.nats.wire import VERSION, parse_headers
from holdfast.model.errors import HoldfastError

_STORED, _SEQUENCE = f"{VERSION}\r\n".encode(), f"{subjects.SEQUENCE}: ".encode()
_PLACE = re.compile(
    f".*\r\n{subjects.SUBJECT}: ([^\r]*)\r\n{subjects.SEQUENCE}: (\\d+)\r\n".encode(), re.DOTALL
)
_PUBLISH = re.compile(subjects.PUBLISH_NAME)


class Stored(NamedTuple):
    """A message as the stream holds it."""

    subject: str
    seq: int
    stamp: str
    headers: Mapping[str, str]
    data: bytes


Raw = tuple[bytes, bytes]
"""A message as it came: its headers unread, and its data."""


class Reply(NamedTuple):
    """The message that an answer ends with."""

    headers: dict[str, str]
    data: bytes


class Answer:
    """The messages of one answer, until the last one has come: without headers, or with a status."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.messages: list[Raw] = []
        self.done: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()

    def __call__(self, headers: bytes, data: bytes) -> None:
        # The second is for whoever wrote headers of no form: the server adds its own to whatever was there.
        if headers.startswith(_STORED) or _SEQUENCE in headers:
            self.messages.append((headers, data))
        elif not self.done.done():
            self.done.set_result(Reply(parse_headers(headers) if headers else {}, data))

    async def within(self, seconds: float) -> Reply:
        """The last message. Not by `asyncio.wait_for`: before Python 3.12 that one swallows a cancellation
        which comes together with the answer, and the cancelled task then runs on for ever."""
        async with asyncio.timeout(seconds):
            return await self.done


def stored(message: Raw) -> Stored:
    """A message with its headers read."""
    headers, data = parse_headers(message[0]), message[1]
    if not _PUBLISH.fullmatch(headers.get(subjects.PUBLISH, "")) or subjects.BATCH not in headers:
        headers.pop(subjects.PUBLISH, None)  # it only says so: nobody would ever end that publish
    return Stored(
        headers[subjects.SUBJECT], int(headers[subjects.SEQUENCE]), headers[subjects.STAMP], headers, data
    )


def place(headers: bytes) -> tuple[str, int]:
    """Subject and sequence alone, which the server writes behind whatever else is there."""
    match = _PLACE.match(headers)
    if match is None:
        raise HoldfastError(f"NATS did not say where a message stands: {headers!r}")
    return match[1].decode(), int(match[2])
