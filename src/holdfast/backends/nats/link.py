"""The link: one connection to a NATS server, with answers of several messages and the one error tree."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any
from urllib.parse import urlsplit

import nats.errors
import orjson
from nats.aio.client import Client
from nats.aio.msg import Msg

from holdfast.backends.nats import subjects
from holdfast.backends.nats.answers import Answer, Raw, Stored, stored
from holdfast.backends.nats.wire import Wire
from holdfast.model.errors import HoldfastError, InvalidInput, TooLarge, Unavailable

PATIENCE = 5.0
_UNSURE = 2.0
_READ_BYTES = 16_000_000
_MOST_LAST, _AT_ONCE = 1000, 500
_TOO_MANY, _NOBODY = "413", "503"


class TooMany(Exception):
    """More subjects match than the server looks for at once."""


class NoStream(Unavailable):
    """Nobody answers for a stream: it is not there, or has no leader."""


class Link:
    """A connection that is made when it is needed, and made again after it broke.

    nats-py's own reconnecting is off: it keeps what was published while the server was away and sends it
    later, long after the caller was told that the store did not answer.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.generation = 0
        """Rises with every new connection: behind it may be another server."""
        self._client: Client | None = None
        self._connecting = asyncio.Lock()
        self._answers: dict[bytes, Answer] = {}
        self._inbox = ""
        self._closing: set[asyncio.Task[None]] = set()
        self._open = False

    async def open(self) -> None:
        """Connect once, so that a wrong URL is said at once."""
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

    async def client(self) -> Client:
        """The connection, made anew if it broke."""
        if self._client is not None and self._client.is_connected:
            return self._client
        async with self._connecting:
            if not self._open:
                raise Unavailable(f"{redacted(self.url)} is not connected; use 'async with connect(...)'")
            if self._client is None or not self._client.is_connected:
                self._client = await self._connect()
                self.generation += 1
            return self._client

    async def _connect(self) -> Client:
        client, url = Wire(self._answers), _plain(self.url)

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
                told = f"NATS at {redacted(self.url)} did not answer in {PATIENCE:g} s"
                raise Unavailable(told) from error
            raise
        return client

    def _lost(self, client: Client) -> None:
        for answer in self._answers.values():
            if answer.client is client and not answer.done.done():
                answer.done.set_exception(nats.errors.ConnectionClosedError())

    @asynccontextmanager
    async def ask(self) -> AsyncIterator[tuple[Client, str, Answer]]:
        """A reply subject on the connection, and what comes in on it."""
        client = await self.client()
        subject = f"{self._inbox}.{secrets.token_hex(6)}"
        answer = self._answers[subject.encode()] = Answer(client)
        try:
            async with self._translated():
                yield client, subject, answer
        except TimeoutError:
            self._hang_up(client)
            raise Unavailable(f"NATS at {redacted(self.url)} did not answer in time") from None
        finally:
            del self._answers[subject.encode()]
            if not answer.done.cancel() and not answer.done.cancelled():
                answer.done.exception()  # somebody has looked at it

    def _hang_up(self, client: Client) -> None:
        """A silent server is not waited for again and again: the next call connects anew, or fails."""
        if client is self._client:
            self._client = None
            closing = asyncio.create_task(client.close())
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)

    async def request(
        self, subject: str, body: Mapping[str, Any] | None = None, patience: float | None = None
    ) -> dict[str, Any]:
        """One question to the JetStream API. An error that it answers with is in the answer."""
        async with self.ask() as (client, reply, answer):
            await client.publish(subject, b"" if body is None else orjson.dumps(body), reply=reply)
            message = await answer.within(patience or PATIENCE)
            if message.headers.get("Status") == _NOBODY:
                raise nats.errors.NoRespondersError
            found: dict[str, Any] = orjson.loads(message.data)
        return found

    async def inquire(self, subject: str, body: Mapping[str, Any] | None = None) -> dict[str, Any] | None:
        """A question that a server may leave open: it does not answer who is not allowed to ask."""
        async with self.ask() as (client, reply, answer):
            await client.publish(subject, b"" if body is None else orjson.dumps(body), reply=reply)
            try:
                message = await answer.within(_UNSURE)
            except TimeoutError:
                return None
        found: dict[str, Any] | None = orjson.loads(message.data) if message.data else None
        return found

    async def read(self, query: Mapping[str, Any], stream: str = subjects.STREAM) -> tuple[list[Stored], int]:
        """A batched direct get: what was found, and how much more matches."""
        messages, pending = await self.read_raw(query, stream)
        return [stored(message) for message in messages], pending

    async def read_raw(self, query: Mapping[str, Any], stream: str) -> tuple[list[Raw], int]:
        """The same without a look at what was found."""
        async with self.ask() as (client, reply, answer):
            body = orjson.dumps({"max_bytes": _READ_BYTES, **query})
            await client.publish(f"$JS.API.DIRECT.GET.{stream}", body, reply=reply)
            last = await answer.within(2 * PATIENCE)
        status = last.headers.get("Status")
        if status == _NOBODY:
            raise NoStream(f"NATS at {redacted(self.url)} did not answer for the stream {stream}")
        if status == _TOO_MANY:
            raise TooMany
        if status not in ("204", "404"):
            raise HoldfastError(f"NATS refused to read {dict(query)}: {last.headers}")
        return answer.messages, int(last.headers.get(subjects.PENDING, 0))

    async def last(self, filters: Sequence[str], stream: str = subjects.STREAM) -> list[Stored]:
        """The newest message of every subject that a filter matches, in order."""
        try:
            return (await self.read({"multi_last": list(filters), "batch": _MOST_LAST}, stream))[0]
        except TooMany:
            pages = [await self._newest(each, stream) for each in filters]
            return sorted((message for page in pages for message in page), key=lambda each: each.seq)

    async def exact(self, wanted: Sequence[str]) -> list[Stored]:
        """The newest message of each of some subjects, however many and however large they are."""
        found: list[Stored] = []
        left = list(wanted)
        while left:
            page = left[:_AT_ONCE]
            messages, pending = await self.read({"multi_last": page, "batch": len(page)})
            found += messages
            there = {message.subject for message in messages} if pending else set(page)
            left = [subject for subject in page if subject not in there] + left[_AT_ONCE:]
        return found

    async def _newest(self, subject: str, stream: str) -> list[Stored]:
        """The same for one filter, however many subjects it matches."""
        newest, after, pending = dict[str, Stored](), 0, 1
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
            raise Unavailable(f"NATS at {redacted(self.url)} did not answer: {said}") from error


async def _unasked(message: Msg) -> None:
    """An answer that nobody waits for any more."""


async def _ignore(error: Exception) -> None:
    """What nats-py tells of broken connections is told to whoever was waiting."""


def _plain(url: str) -> str:
    try:
        parts = urlsplit(url)
        if not parts.hostname:
            raise ValueError("it names no host")
        _ = parts.port
    except ValueError as error:
        raise InvalidInput(f"the URL of the NATS store cannot be used: {error}") from None
    return url


def redacted(url: str) -> str:
    """The URL without its password, for messages and logs."""
    try:
        parts = urlsplit(url)
        return f"{parts.hostname}:{parts.port or 4222}"
    except ValueError:
        return "the given URL"
