"""One connection to a NATS server: requests, reads of many messages, and its errors as ours."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import nats.errors
import orjson
from nats.aio.client import Client
from nats.aio.msg import Msg

from holdfast.backends.nats.wire import subjects
from holdfast.backends.nats.wire.parser import VERSION, Raw, ReplyClient, StoredMessage, parse_headers, stored
from holdfast.model.errors import HoldfastError, InvalidInput, TooLarge, Unavailable
from holdfast.model.redact import address

PATIENCE = 5.0
_UNSURE = 2.0
_READ_BYTES = 16_000_000
_MOST_LAST, _AT_ONCE = 1000, 500
_MESSAGE, _SEQUENCE = f"{VERSION}\r\n".encode(), f"{subjects.SEQUENCE}: ".encode()
_TOO_MANY, _NOBODY = "413", "503"


class LastReply(NamedTuple):
    """The message that the replies to a request end with."""

    headers: dict[str, str]
    data: bytes


class Replies:
    """The replies to one request, until the last one: without headers, or with a status. Where a single
    message is `one`, it is the last one as well."""

    def __init__(self, client: Client, one: bool) -> None:
        self.client, self._one = client, one
        self.messages: list[Raw] = []
        self.done: asyncio.Future[LastReply] = asyncio.get_running_loop().create_future()

    def __call__(self, headers: bytes, data: bytes) -> None:
        # The second is for whoever wrote headers of no form: the server adds its own to whatever was there.
        is_message = headers.startswith(_MESSAGE) or _SEQUENCE in headers
        if is_message:
            self.messages.append((headers, data))
        if (self._one or not is_message) and not self.done.done():
            parsed = {} if is_message or not headers else parse_headers(headers)
            self.done.set_result(LastReply(parsed, data))

    async def last(self, seconds: float) -> LastReply:
        """Return the last message. Raises `TimeoutError`."""
        # Not by `asyncio.wait_for`: before Python 3.12 that one swallows a cancellation which comes together
        # with the reply, and the cancelled task then runs on for ever.
        async with asyncio.timeout(seconds):
            return await self.done


class TooMany(Exception):
    """More subjects match than the server looks for at once."""


class NoStream(Unavailable):
    """No server has the stream: it is not there, or has no leader."""


class NatsConnection:
    """A connection that is made when it is needed, and made again after it broke.

    nats-py's own reconnecting is off: it keeps what was published while the server was away and sends it
    later, long after the caller was told that the store did not answer.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.generation = 0
        """Rises with every new connection: behind it may be another server."""
        self.seen = 0
        """A sequence up to which every read on this connection finds what there is, 0 where none is known."""
        self._client: ReplyClient | None = None
        self._connecting = asyncio.Lock()
        self._replies: dict[bytes, Replies] = {}
        self._inbox = ""
        self._closing: set[asyncio.Task[None]] = set()
        self._open = False

    async def open(self) -> None:
        """Connect once, so that a wrong URL is reported at once. Raises `InvalidInput`, `Unavailable`."""
        self._open = True
        await self.client()

    async def close(self) -> None:
        """Give the connection back."""
        self._open = False
        client, self._client = self._client, None
        if client is not None:
            await client.close()
        if self._closing:
            _, unheard = await asyncio.wait(self._closing, timeout=1)
            for closing in unheard:
                closing.cancel()

    async def client(self) -> ReplyClient:
        """Return the connection, made anew if it broke. Raises `Unavailable`."""
        if self._client is not None and self._client.is_connected:
            return self._client
        async with self._connecting:
            if not self._open:
                raise Unavailable(
                    f"{address(self.url, 4222)} is not connected; use 'async with connect(...)'"
                )
            if self._client is None or not self._client.is_connected:
                self._client = await self._connect()
                self.generation += 1
                self.seen = 0
            return self._client

    async def _connect(self) -> ReplyClient:
        client, url = ReplyClient(self._replies), _checked(self.url)

        async def closed() -> None:
            self._lost(client)

        try:
            async with asyncio.timeout(PATIENCE), self._translated():
                await client.connect(
                    url,
                    allow_reconnect=False,
                    connect_timeout=2,
                    max_reconnect_attempts=1,
                    reconnect_time_wait=0,
                    error_cb=_ignore,
                    closed_cb=closed,
                )
                self._inbox = f"_INBOX.{secrets.token_hex(8)}"
                await client.subscribe(f"{self._inbox}.*", cb=_unasked)
        except BaseException as error:
            with suppress(AssertionError):  # raised where it was not even begun
                await client.close()  # nats-py leaves a half-made connection open
            if isinstance(error, TimeoutError):
                told = f"NATS at {address(self.url, 4222)} did not answer in {PATIENCE:g} s"
                raise Unavailable(told) from error
            raise
        return client

    def _lost(self, client: Client) -> None:
        for replies in self._replies.values():
            if replies.client is client and not replies.done.done():
                replies.done.set_exception(nats.errors.ConnectionClosedError())

    @asynccontextmanager
    async def ask(self, *, one: bool = False) -> AsyncIterator[tuple[ReplyClient, str, Replies]]:
        """Yield the connection, a reply subject on it, and what comes in there."""
        client = await self.client()
        subject = f"{self._inbox}.{secrets.token_hex(6)}"
        replies = self._replies[subject.encode()] = Replies(client, one)
        try:
            async with self._translated():
                yield client, subject, replies
        except TimeoutError:
            self._abandon(client)
            raise Unavailable(f"NATS at {address(self.url, 4222)} did not answer in time") from None
        finally:
            del self._replies[subject.encode()]
            if not replies.done.cancel() and not replies.done.cancelled():
                replies.done.exception()  # somebody has looked at it

    def _abandon(self, client: Client) -> None:
        """A silent server is not waited for again and again: the next call connects anew, or fails."""
        if client is self._client:
            self._client = None
            closing = asyncio.create_task(client.close())
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)

    async def request(
        self, subject: str, body: Mapping[str, Any] | None = None, patience: float | None = None
    ) -> dict[str, Any]:
        """Return the reply of the JetStream API; an error that it reports is in it."""
        async with self.ask() as (client, reply, replies):
            await client.publish(subject, b"" if body is None else orjson.dumps(body), reply=reply)
            message = await replies.last(patience or PATIENCE)
            if message.headers.get("Status") == _NOBODY:
                raise nats.errors.NoRespondersError
            found: dict[str, Any] = orjson.loads(message.data)
        return found

    async def inquire(self, subject: str, body: Mapping[str, Any] | None = None) -> dict[str, Any] | None:
        """Return the reply, None where there is none: a server ignores who is not allowed to ask."""
        async with self.ask() as (client, reply, replies):
            await client.publish(subject, b"" if body is None else orjson.dumps(body), reply=reply)
            try:
                message = await replies.last(_UNSURE)
            except TimeoutError:
                return None
        found: dict[str, Any] | None = orjson.loads(message.data) if message.data else None
        return found

    async def read(
        self, query: Mapping[str, Any], stream: str = subjects.STREAM
    ) -> tuple[list[StoredMessage], int]:
        """Return what a batched direct get finds, and how much more matches. Raises `NoStream`, `TooMany`."""
        messages, pending = await self.read_raw(query, stream)
        return [stored(message) for message in messages], pending

    async def read_raw(self, query: Mapping[str, Any], stream: str) -> tuple[list[Raw], int]:
        """Return the same, unread."""
        return await self._get({"max_bytes": _READ_BYTES, **query}, stream)

    async def next(self, subject: str, after: int) -> StoredMessage | None:
        """Return the first message of a subject after a sequence.

        A batch of one would return it as well, but lets the server count what else matches: for that it walks
        through all that was stored since, or reads blocks from its disk.
        """
        found, _ = await self._get({"seq": after + 1, "next_by_subj": subject}, subjects.STREAM, one=True)
        return stored(found[0]) if found else None

    async def at(self, seq: int) -> StoredMessage | None:
        """Return the message with a sequence."""
        found, _ = await self._get({"seq": seq}, subjects.STREAM, one=True)
        return stored(found[0]) if found else None

    async def _get(
        self, query: Mapping[str, Any], stream: str, *, one: bool = False
    ) -> tuple[list[Raw], int]:
        async with self.ask(one=one) as (client, reply, replies):
            await client.publish(f"$JS.API.DIRECT.GET.{stream}", orjson.dumps(query), reply=reply)
            last = await replies.last(2 * PATIENCE)
        if one and replies.messages:
            return replies.messages, 0
        status = last.headers.get("Status")
        if status == _NOBODY:
            raise NoStream(f"NATS at {address(self.url, 4222)} did not answer for the stream {stream}")
        if status == _TOO_MANY:
            raise TooMany
        if status not in ("204", "404"):
            raise HoldfastError(f"NATS refused to read {dict(query)}: {last.headers}")
        return replies.messages, int(last.headers.get(subjects.PENDING, 0))

    async def last(self, filters: Sequence[str], stream: str = subjects.STREAM) -> list[StoredMessage]:
        """Return the newest message of every subject that a filter matches, in order."""
        try:
            return (await self.read({"multi_last": list(filters), "batch": _MOST_LAST}, stream))[0]
        except TooMany:
            pages = [await self._newest(each, stream) for each in filters]
            return sorted((message for page in pages for message in page), key=lambda each: each.seq)

    async def exact(self, wanted: Sequence[str]) -> list[StoredMessage]:
        """Return the newest message of each of some subjects, however many and however large they are."""
        found: list[StoredMessage] = []
        left = list(wanted)
        while left:
            page = left[:_AT_ONCE]
            messages, pending = await self.read({"multi_last": page, "batch": len(page)})
            found += messages
            there = {message.subject for message in messages} if pending else set(page)
            left = [subject for subject in page if subject not in there] + left[_AT_ONCE:]
        return found

    async def _newest(self, subject: str, stream: str) -> list[StoredMessage]:
        newest, after, pending = dict[str, StoredMessage](), 0, 1
        while pending:
            query = {"seq": after + 1, "next_by_subj": subject, "batch": _MOST_LAST}
            found, pending = await self.read(query, stream)
            newest |= {message.subject: message for message in found}
            after = found[-1].seq if found else after
        return list(newest.values())

    @asynccontextmanager
    async def _translated(self) -> AsyncIterator[None]:
        try:
            yield
        except TimeoutError:
            raise
        except (nats.errors.Error, OSError) as error:
            if isinstance(error, nats.errors.MaxPayloadError):
                raise TooLarge(f"a message is over the server's max_payload: {error}; raise it") from error
            said = str(error).strip() or type(error).__name__
            raise Unavailable(f"NATS at {address(self.url, 4222)} did not answer: {said}") from error


async def _unasked(message: Msg) -> None:
    """A reply that nobody waits for any more."""


async def _ignore(error: Exception) -> None:
    """Whoever was waiting hears of a broken connection by itself."""


def _checked(url: str) -> str:
    try:
        parts = urlsplit(url)
        if not parts.hostname:
            raise ValueError("it names no host")
        _ = parts.port
    except ValueError as error:
        raise InvalidInput(f"the URL of the NATS store cannot be used: {error}") from None
    return url
