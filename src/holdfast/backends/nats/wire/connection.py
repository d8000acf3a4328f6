"""One connection to a NATS server: requests, reads of many messages, and its errors as ours.

Of a replicated stream it leads to the server that leads the stream, where the URL or the servers tell of it:
when the leader hangs, unanswered pings tell so, and no message takes a detour.

A direct get is served by any server that has the stream, also when one is connected to the leader (2.15
chooses at random): by one that lacks what was acknowledged a moment ago, or that hangs. What is in a reply is
exact. What is not there has to be proved: of the newest messages of some subjects by the sequence up to which
the server had the stream, of what follows a sequence by the leader's word that nothing more does.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import cached_property
from typing import Any, NamedTuple

import nats.errors
import orjson
from nats.aio.client import Client
from nats.aio.msg import Msg

from holdfast.backends.nats.wire import subjects
from holdfast.backends.nats.wire.leader import LeaderSearch
from holdfast.backends.nats.wire.parser import (
    VERSION,
    Raw,
    ReplyClient,
    StoredMessage,
    parse_headers,
    stored,
    subject_and_sequence,
)
from holdfast.backends.nats.wire.servers import Servers, parse_servers
from holdfast.model.errors import HoldfastError, TooLarge, Unavailable
from holdfast.model.redact import address

PATIENCE = 5.0
_UNSURE = 2.0
_READ_BYTES = 16_000_000
_MOST_LAST, _AT_ONCE = 1000, 500
_MESSAGE, _SEQUENCE = f"{VERSION}\r\n".encode(), f"{subjects.SEQUENCE}: ".encode()
_TOO_MANY, _NOBODY = "413", "503"
_NOTHING_FOLLOWS = 10037
_SILENCE = 1.0
"""Seconds after which another one of several servers is asked."""
_LAG = 0.01  # seconds that a server is given to catch up


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

    async def or_silence(self, seconds: float) -> LastReply | None:
        """Return the last message; None where nothing has come for so long."""
        known = -1
        while not self.done.done() and known < len(self.messages):
            known = len(self.messages)
            await asyncio.wait([self.done], timeout=seconds)
        return self.done.result() if self.done.done() else None

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
        self.is_replicated = False
        """Whether the stream is on several servers."""
        self.seen = 0
        """The newest message of which this process knows: every read finds what there is up to it."""
        self._unreachable = ""
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
            return self._client

    @cached_property
    def servers(self) -> Servers:
        """What the URL says. Raises `InvalidInput`."""
        return parse_servers(self.url)

    async def _connect(self) -> ReplyClient:
        """Return a connection to the server that leads the stream; where it is not replicated, to any."""
        search = LeaderSearch(self.url, self.servers, self._replies, self._lost, self._elected)
        chosen = None
        try:
            async with asyncio.timeout(PATIENCE), self._translated():
                chosen, leader = await search.run()
                self.is_replicated = leader is not None
                self._unreachable = "" if leader == chosen.server_name else leader or ""
                self._inbox = f"_INBOX.{secrets.token_hex(8)}"
                await chosen.subscribe(f"{self._inbox}.*", cb=_unasked)
        except TimeoutError as error:
            told = f"NATS at {address(self.url, 4222)} did not answer in {PATIENCE:g} s"
            raise Unavailable(told) from error
        finally:
            for each in search.made.values():
                if each is not chosen:
                    self._close_soon(each)
        return chosen

    async def _elected(self, message: Msg) -> None:
        self.follow(orjson.loads(message.data))

    def follow(self, cluster: Mapping[str, Any]) -> None:
        """Let the next call go to the stream's leader, where that is not what it is connected to; and connect
        anew where the stream is replicated since a moment ago.

        `cluster` is what the server tells of a stream. What is under way ends on the connection that it has.
        """
        client, leader, is_replicated = self._client, cluster.get("leader"), bool(cluster.get("replicas"))
        if client is None or not leader or not is_replicated:
            return
        if not self.is_replicated or leader not in (client.server_name, self._unreachable):
            self._leave(client)

    def _leave(self, client: Client, patience: float = PATIENCE) -> None:
        if client is self._client:
            self._client = None
            self._close_soon(client, patience)

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
            if not self.servers.pings:  # a silent server is not waited for again and again
                self._leave(client, patience=0)
            raise Unavailable(f"NATS at {address(self.url, 4222)} did not answer in time") from None
        finally:
            del self._replies[subject.encode()]
            if not replies.done.cancel() and not replies.done.cancelled():
                replies.done.exception()  # somebody has looked at it

    def _close_soon(self, client: Client, patience: float = PATIENCE) -> None:
        closing = asyncio.create_task(self._close(client, patience))
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)

    async def _close(self, client: Client, patience: float) -> None:
        """Close a connection once what is under way on it has ended."""
        under_way = [each.done for each in self._replies.values() if each.client is client]
        try:
            if under_way and patience:
                await asyncio.wait(under_way, timeout=patience)
        finally:
            await client.close()

    async def request(
        self,
        subject: str,
        body: Mapping[str, Any] | None = None,
        patience: float | None = None,
        *,
        repeat: bool = False,
    ) -> dict[str, Any]:
        """Return the reply of the JetStream API; an error that it reports is in it.

        While a replicated stream has no leader nobody replies. A request that changes nothing is repeated.
        """
        until = time.monotonic() + (patience or PATIENCE)
        while True:
            async with self.ask() as (client, reply, replies):
                await client.publish(subject, b"" if body is None else orjson.dumps(body), reply=reply)
                left = until - time.monotonic()
                again = repeat and self.is_replicated and left > _SILENCE
                message = await replies.or_silence(_SILENCE if again else left)
                if message is None and again:
                    continue
                if message is None:
                    raise TimeoutError
                if message.headers.get("Status") == _NOBODY:
                    raise nats.errors.NoRespondersError
                found: dict[str, Any] = orjson.loads(message.data)
                return found

    async def inquire(self, subject: str, body: Mapping[str, Any] | None = None) -> dict[str, Any] | None:
        """Return the reply, None where there is none: a server ignores who is not allowed to ask."""
        async with self.ask() as (client, reply, replies):
            await client.publish(subject, b"" if body is None else orjson.dumps(body), reply=reply)
            try:
                message = await replies.last(_SILENCE if self.is_replicated else _UNSURE)
            except TimeoutError:
                return None
        found: dict[str, Any] | None = orjson.loads(message.data) if message.data else None
        return found

    async def read(
        self, query: Mapping[str, Any], stream: str = subjects.STREAM, least: int = 0
    ) -> tuple[list[StoredMessage], int]:
        """Return what a batched direct get finds, and how much more matches: everything that this process can
        know of, and what stands up to `least`. Raises `NoStream`, `TooMany`, `Unavailable`."""
        messages, pending = await self.read_raw(query, stream, least)
        return [stored(message) for message in messages], pending

    async def read_raw(self, query: Mapping[str, Any], stream: str, least: int = 0) -> tuple[list[Raw], int]:
        """Return the same, unread."""
        if not self.is_replicated:
            async with self.ask() as (client, reply, replies):
                await self._send(client, query, stream, reply)
                return self._found(query, stream, replies, await replies.last(2 * PATIENCE))
        if "multi_last" in query:
            filters = [*query["multi_last"], subjects.PRESENT]
            query = {**query, "multi_last": filters, "batch": query["batch"] + 1}
        until, client = time.monotonic() + 2 * PATIENCE, await self.client()
        while time.monotonic() < until:
            found = await self._attempt(query, stream, least)
            if found is not None:
                return found
            await asyncio.sleep(_LAG)
        self._leave(client)  # what this process has seen may be lost: it looks again
        raise Unavailable(f"no server at {address(self.url, 4222)} has all of the stream {stream}; try again")

    async def next(self, subject: str, after: int, least: int = 0) -> StoredMessage | None:
        """Return the first message of a subject after a sequence.

        A batch of one would return it as well, but lets the server count what else matches: for that it walks
        through all that was stored since, or reads blocks from its disk.
        """
        query = {"seq": after + 1, "next_by_subj": subject}
        if not self.is_replicated:
            return await self._one(query)
        found, _ = await self.read({**query, "batch": 1}, least=least)
        return found[0] if found else None

    async def at(self, subject: str, seq: int) -> StoredMessage | None:
        """Return the message with a sequence, if it is one of that subject."""
        one = self.next(subject, seq - 1, seq) if self.is_replicated else self._one({"seq": seq})
        found = await one
        return found if found is not None and (found.subject, found.seq) == (subject, seq) else None

    async def _one(self, query: Mapping[str, Any]) -> StoredMessage | None:
        async with self.ask(one=True) as (client, reply, replies):
            await self._send(client, query, subjects.STREAM, reply)
            last = await replies.last(2 * PATIENCE)
        if replies.messages:
            return stored(replies.messages[0])
        self._found(query, subjects.STREAM, replies, last)
        return None

    async def _attempt(
        self, query: Mapping[str, Any], stream: str, least: int
    ) -> tuple[list[Raw], int] | None:
        """Ask one server; returns None where it is silent, or lacks something."""
        known = self.seen
        async with self.ask() as (client, reply, replies):
            await self._send(client, query, stream, reply)
            last = await replies.or_silence(_SILENCE)
        if last is None:
            return None
        found, pending = self._found(query, stream, replies, last)
        newest = subject_and_sequence(found[-1][0])[1] if found else 0
        if stream == subjects.STREAM:
            self.seen = max(self.seen, newest)
        if "multi_last" in query:
            reached = int(last.headers.get(subjects.UP_TO, 0))
            is_whole = stream != subjects.STREAM or "up_to_seq" in query or reached >= max(least, known)
            found = [each for each in found if subject_and_sequence(each[0])[0] != subjects.PRESENT]
        else:
            is_enough = pending > 0 or (query["batch"] == 1 and newest > 0)
            is_whole = is_enough or not await self._lacks(query, newest, stream, max(least, known))
        return (found, pending) if is_whole else None

    async def _lacks(self, query: Mapping[str, Any], newest: int, stream: str, least: int) -> bool:
        """Whether there is a message behind the newest one that was found, up to `least`.

        State is read whole, as the leader has it: a message that was replaced between two pages would be on
        neither. Of the log whatever is appended meanwhile may be missing.
        """
        subject, is_log = query["next_by_subj"], stream == subjects.STREAM
        is_log = is_log and not query["next_by_subj"].startswith(subjects.STATE_PREFIX)
        place = {"start_time": query["start_time"]} if "start_time" in query else {"seq": query["seq"]}
        if newest:
            place = {"seq": newest + 1}
        if is_log and newest >= least:
            return False
        if is_log and "seq" in place and not {"*", ">"} & set(subject):
            proof = {**place, "multi_last": [subject, subjects.PRESENT], "batch": 2}
            return await self._attempt(proof, stream, least) != ([], 0)
        reply = await self.request(
            f"$JS.API.STREAM.MSG.GET.{stream}", {**place, "next_by_subj": subject}, repeat=True
        )
        error = reply.get("error", {})
        if error and error.get("err_code") != _NOTHING_FOLLOWS:
            raise Unavailable(f"NATS could not read the stream {stream}: {error.get('description')}")
        return not error and (not is_log or int(reply["message"]["seq"]) <= least)

    async def _send(self, client: Client, query: Mapping[str, Any], stream: str, reply: str) -> None:
        body = orjson.dumps({"max_bytes": _READ_BYTES, **query})
        await client.publish(f"$JS.API.DIRECT.GET.{stream}", body, reply=reply)

    def _found(
        self, query: Mapping[str, Any], stream: str, replies: Replies, last: LastReply
    ) -> tuple[list[Raw], int]:
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
