"""The stream: its settings and replicas, the subjects that it captures, and how full it is."""

from __future__ import annotations

import asyncio
import itertools
import time
from base64 import b64decode
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, NamedTuple

from holdfast.backends.nats.wire import subjects
from holdfast.backends.nats.wire.batches import Batches, BatchMessage, Incomplete, Stale, backoff
from holdfast.backends.nats.wire.connection import NatsConnection
from holdfast.backends.nats.wire.leader import STREAM_INFO
from holdfast.backends.nats.wire.parser import StoredMessage, parse_headers
from holdfast.model.errors import HoldfastError, InvalidInput, Overloaded, Unavailable
from holdfast.model.names import matches
from holdfast.model.redact import address

OLDEST = (2, 12)
LEAST_PAYLOAD = 524_288
"""What a message must hold: a job's record has up to 15 errors of up to 24,000 bytes."""
_API = "$JS.API.STREAM"
_NOT_FOUND, _EXISTS, _NO_MESSAGE, _NOTHING = 10059, 10058, 10043, 10037
_ASK_AGAIN = 0.1
_USUAL = 3  # replicas: more than one only where one server may fail
_NO_PEERS, _OFFLINE = {10005, 10074}, "offline"
_ALONE = 10
"""Seconds after which the mark of whoever changes the subjects is gone by itself."""
_SLOW = 60.0  # seconds that a purge may take
_SETTINGS: dict[str, Any] = {
    "name": subjects.STREAM,
    "description": "Holdfast: events, jobs and everything else; see docs/nats.md",
    "retention": "limits",
    "discard": "new",  # a full stream refuses, and removes nothing
    "storage": "file",
    "max_consumers": -1,
    "max_msgs": -1,
    "max_bytes": -1,
    "max_age": 0,
    "max_msgs_per_subject": -1,
    "allow_direct": True,
    "allow_atomic": True,
    "allow_rollup_hdrs": True,
    "allow_msg_ttl": True,
}
BUCKET = "Holdfast: state records; see docs/nats.md"
_NEEDED = ("allow_direct", "allow_atomic", "allow_rollup_hdrs", "allow_msg_ttl")
SERVER_INFO = "$SYS.REQ.SERVER.PING.JSZ"
_ACCOUNT_INFO = "$JS.API.INFO"
_RESERVE, _MOST_RESERVE = 10, 64_000_000  # of a limit a tenth is kept, and not more than this
_MESSAGE = 300  # bytes that a message takes besides its data, about
_VALID, _OTHERS = 1.0, 8  # a look is good for a second, and for an eighth of what was left then
_ASKED = 3  # requests without a reply, after which no more are sent


async def info(connection: NatsConnection, **query: Any) -> dict[str, Any]:
    """Return the stream as its leader has it now."""
    generation = connection.generation
    reply = await connection.request(f"{_API}.INFO.{subjects.STREAM}", query or None, repeat=True)
    connection.follow(reply.get("cluster", {}))
    found = _checked(reply, f"look at the stream {subjects.STREAM}")
    if generation == connection.generation:
        connection.seen = max(connection.seen, int(found["state"]["last_seq"]))
    return found


async def ensure(connection: NatsConnection) -> str:
    """Create the stream where there is none, and give it the replicas that the URL asks for; returns its
    identity.

    A restarted server may lack the newest messages that its clients have seen, so that it counts as another
    one, unless the stream has replicas.
    """
    client = await connection.client()
    server = client.server_info
    version = tuple(int(part) for part in str(server.get("version", "0.0")).split(".")[:2] if part.isdigit())
    if version < OLDEST:
        raise HoldfastError(f"NATS {server.get('version')} has no atomic batches; use 2.12 or newer")
    if client.max_payload < LEAST_PAYLOAD:
        raise HoldfastError(
            f"NATS has max_payload {client.max_payload}, too little for the record of a job that failed "
            f"often; set it to {LEAST_PAYLOAD} or more, the default is 1 MB"
        )
    reply = await connection.request(f"{_API}.INFO.{subjects.STREAM}")
    if reply.get("error", {}).get("err_code") == _NOT_FOUND:
        reply = await create(connection, _SETTINGS | {"subjects": [subjects.OURS]})
        if reply.get("error", {}).get("err_code") in (None, _EXISTS):
            reply = await led(connection, subjects.STREAM)
    reply = _checked(reply, f"create the stream {subjects.STREAM}")
    connection.follow(reply.get("cluster", {}))
    missing = [name for name in _NEEDED if not reply["config"].get(name)]
    if missing:
        raise HoldfastError(
            f"the stream {subjects.STREAM} lacks {', '.join(missing)}; update it, or remove it"
        )
    if int(reply["config"]["num_replicas"]) < (connection.servers.replicas or 0):
        async with _alone(connection):
            reply = await add_replicas(connection, subjects.STREAM)
    replicated = int(reply["config"]["num_replicas"]) > 1
    if replicated and await last(connection, subjects.PRESENT) is None:
        with suppress(Stale):
            await _commit(connection, BatchMessage(subjects.PRESENT, expect=0))
    return f"{reply['created']}" + ("" if replicated else f" {server.get('server_id')}")


async def create(connection: NatsConnection, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the reply to the request for a new stream, with the replicas that the URL asks for.

    Without that, three in a cluster that has as many servers, and one elsewhere. Raises `InvalidInput` where
    the cluster has not as many servers as the URL asks for, `Unavailable` where some are away.
    """
    asked, client = connection.servers.replicas, await connection.client()
    usual = _USUAL if client.server_info.get("cluster") else 1
    subject = f"{_API}.CREATE.{settings['name']}"
    reply = await connection.request(subject, {**settings, "num_replicas": asked or usual})
    if _lacks_servers(reply) and asked is None and len(connection.servers.urls) < _USUAL:
        reply = await connection.request(subject, {**settings, "num_replicas": 1})
    return _enough_servers(connection, reply)


async def add_replicas(connection: NatsConnection, stream: str) -> dict[str, Any]:
    """Give a stream as many replicas as the URL asks for, where it has fewer. Raises `InvalidInput`."""
    found = _checked(await connection.request(f"{_API}.INFO.{stream}"), f"look at the stream {stream}")
    asked = connection.servers.replicas
    if asked is None or int(found["config"]["num_replicas"]) >= asked:
        return found
    update = found["config"] | {"num_replicas": asked}
    reply = await connection.request(f"{_API}.UPDATE.{stream}", update)
    _checked(_enough_servers(connection, reply), f"give the stream {stream} {asked} replicas")
    return await led(connection, stream)


async def led(connection: NatsConnection, stream: str) -> dict[str, Any]:
    """Return a stream once its replicas have elected a leader: nobody else takes messages or replies."""
    until = time.monotonic() + _ALONE
    while time.monotonic() < until:
        found = await connection.inquire(f"{_API}.INFO.{stream}")
        if found is not None and ("cluster" not in found or found["cluster"].get("leader")):
            return found
        await asyncio.sleep(_ASK_AGAIN)
    raise Unavailable(f"the replicas of the stream {stream} have not elected a leader yet; try again")


def _lacks_servers(reply: Mapping[str, Any]) -> bool:
    """Whether the cluster has too few servers, and would also if all of them were up."""
    error = reply.get("error", {})
    return error.get("err_code") in _NO_PEERS and _OFFLINE not in error.get("description", "")


def _enough_servers(connection: NatsConnection, reply: dict[str, Any]) -> dict[str, Any]:
    error, servers = reply.get("error", {}), connection.servers
    if error.get("err_code") not in _NO_PEERS:
        return reply
    told = f"of the cluster at {address(connection.url, 4222)} too few servers are there"
    told += f" for {servers.replicas or _USUAL} replicas: {error.get('description')}"
    if _lacks_servers(reply) and servers.replicas is not None:
        raise InvalidInput(f"{told}; add servers, or ask for fewer replicas")
    raise Unavailable(f"{told}; start those that are away, or ask for ?replicas=1")


async def capture(connection: NatsConnection, channels: Iterable[str]) -> None:
    """Let the stream capture channels that it does not capture yet."""
    wanted = list(channels)
    if not _missing(wanted, (await info(connection))["config"]):
        return
    async with _alone(connection):
        config = (await info(connection))["config"]
        if missing := _missing(wanted, config):
            update = config | {"subjects": [*config["subjects"], *missing]}
            _checked(
                await connection.request(f"{_API}.UPDATE.{subjects.STREAM}", update),
                f"let the stream {subjects.STREAM} capture {', '.join(missing[:5])}",
            )


@asynccontextmanager
async def _alone(connection: NatsConnection) -> AsyncIterator[None]:
    """Allow one update after the other; wait for one whose process died.

    The server checks no revision: of two at once one undoes the other. And it compares both with the same
    settings, so that it subscribes to a subject twice, and stores its messages twice (seen with 2.15.1).
    """
    mark = BatchMessage(subjects.UPDATING, b"", {subjects.TTL: f"{_ALONE}s"}, expect=0)
    until = time.monotonic() + 2 * _ALONE
    for turn in itertools.count():
        try:
            seq = await _commit(connection, mark)
            break
        except Stale:
            if time.monotonic() > until:
                raise Unavailable(
                    f"the subjects of the stream {subjects.STREAM} are changed by too many at once; try again"
                ) from None
            await backoff(turn)
    try:
        yield
    finally:
        await delete(connection, seq)


async def _commit(connection: NatsConnection, message: BatchMessage) -> int:
    """Commit a message as soon as the stream has a leader. Raises `Stale`, `Unavailable`."""
    until = time.monotonic() + _ALONE
    for turn in itertools.count():
        try:
            return await Batches(connection).commit([message])
        except Incomplete:
            if time.monotonic() > until:
                break
            await backoff(turn)
    raise Unavailable(f"the stream {subjects.STREAM} has no leader; try again")


async def purge(connection: NatsConnection, subject: str, last: int) -> None:
    """Remove every message of the subjects that a filter matches, up to and including a sequence."""
    if last > 0:
        _checked(
            await connection.request(
                f"{_API}.PURGE.{subjects.STREAM}", {"filter": subject, "seq": last + 1}, patience=_SLOW
            ),
            f"purge {subject} from the stream {subjects.STREAM}",
        )


async def last(
    connection: NatsConnection, subject: str, stream: str = subjects.STREAM
) -> StoredMessage | None:
    """Return the newest message of all subjects that a filter matches, as the stream's leader knows; None
    where there is none, or no such stream."""
    reply = await connection.request(f"{_API}.MSG.GET.{stream}", {"last_by_subj": subject}, repeat=True)
    if reply.get("error", {}).get("err_code") in (_NOTHING, _NOT_FOUND):
        return None
    found = _checked(reply, f"look for {subject} in the stream {stream}")["message"]
    headers, data = (b64decode(found.get(name, "")) for name in ("hdrs", "data"))
    return StoredMessage(
        found["subject"], found["seq"], found["time"], parse_headers(headers) if headers else {}, data
    )


async def has(connection: NatsConnection, seq: int) -> bool:
    """Return whether the stream has a message, as its leader knows."""
    reply = await connection.request(f"{_API}.MSG.GET.{subjects.STREAM}", {"seq": seq})
    if reply.get("error", {}).get("err_code") in (_NO_MESSAGE, _NOTHING):
        return False
    _checked(reply, f"look for message {seq} of the stream {subjects.STREAM}")
    return True


async def delete(connection: NatsConnection, seq: int) -> None:
    """Remove one message; it may be gone already."""
    reply = await connection.request(f"{_API}.MSG.DELETE.{subjects.STREAM}", {"seq": seq, "no_erase": True})
    error = reply.get("error", {})
    # Of what stood before the first message the server says so only in words, as of a store that failed.
    if error.get("err_code") != _NO_MESSAGE and error.get("description") != "no message found":
        _checked(reply, f"remove message {seq} of the stream {subjects.STREAM}")


def _missing(wanted: Iterable[str], config: dict[str, Any]) -> list[str]:
    return [channel for channel in wanted if not _captured(channel, config["subjects"])]


def _captured(channel: str, captured: Iterable[str]) -> bool:
    return any(
        channel == each or (each.islower() and ("*" in each or ">" in each) and matches(each, channel))
        for each in captured
    )


def _checked(reply: dict[str, Any], what: str) -> dict[str, Any]:
    error = reply.get("error")
    if error is None:
        return reply
    if error.get("code", 0) >= 500:  # it cannot now: no room on its disk, no leader, …
        raise Unavailable(f"NATS could not {what}: {error.get('description')}")
    raise HoldfastError(f"NATS refused to {what}: {error.get('description')} ({error.get('err_code')})")


class _Limit(NamedTuple):
    """How much one of the server's limits allows, and how much of it is used."""

    name: str
    most: float = float("inf")
    used: int = 0

    def left(self, keep: float) -> float:
        """Return what may be used so that some of the reserve stays."""
        return self.most - self.used - keep * min(self.most / _RESERVE, _MOST_RESERVE)


class Capacity:
    """How much may still be published: that ends before the store is full, so that its jobs can still end.

    At its limit a server refuses every message, also those that end a job, take a lock or trim. And a batch
    that crosses the limit of an account or of the server is not refused whole: its first part stays. So the
    limits are looked at now and then, and what this process adds is counted in between.
    """

    def __init__(self, connection: NatsConnection) -> None:
        self._connection = connection
        self._looking = asyncio.Lock()
        self._limit, self._added = _Limit("none"), 0
        self._until, self._generation = 0.0, 0
        self._replies: dict[str, dict[str, Any]] = {}
        self._unheard: Counter[str] = Counter()

    async def use(self, messages: Sequence[BatchMessage], keep: float = 1) -> None:
        """Count messages before they are added. Raises `Overloaded` where they leave less of the reserve."""
        size = sum(len(message.data) + _MESSAGE for message in messages)
        async with self._looking:
            left = self._limit.left(keep) / _OTHERS
            if time.monotonic() >= self._until or self._added + size > left:
                await self._look()
            if self._added + size > self._limit.left(keep):
                raise Overloaded(
                    f"the store is nearly full: {self._limit.used} bytes of {self._limit.name} "
                    f"{self._limit.most:.0f}, and the rest is for the jobs that there are; raise it, or trim"
                )
            self._added += size

    async def _look(self) -> None:
        if self._generation != self._connection.generation:
            self._generation = self._connection.generation
            self._replies.clear()
            self._unheard.clear()
        replies = await asyncio.gather(*map(self._ask, (STREAM_INFO, _ACCOUNT_INFO, SERVER_INFO)))
        self._limit, self._added = min(_limits(*replies), key=lambda limit: limit.left(1)), 0
        self._until = time.monotonic() + _VALID

    async def _ask(self, subject: str) -> dict[str, Any]:
        """Return the newest reply. Not every account may ask for all limits: after some tries it stops."""
        if subject in self._replies or self._unheard[subject] < _ASKED:
            body = about((await self._connection.client()).server_name) if subject == SERVER_INFO else None
            reply = await self._connection.inquire(subject, body)
            if reply is None:
                self._unheard[subject] += 1
            else:
                self._replies[subject] = reply
        return self._replies.get(subject, {})


def _limits(stream: dict[str, Any], account: dict[str, Any], server: dict[str, Any]) -> Iterator[_Limit]:
    yield _Limit("none")
    most = stream.get("config", {}).get("max_bytes", -1)
    if most > 0:
        yield _Limit("the stream's max_bytes", most, stream["state"]["bytes"])
    most = account.get("limits", {}).get("max_storage", -1)
    if most > 0:
        yield _Limit("the account's max_file", most, account["storage"])
    data = server.get("data", {})
    most = data.get("config", {}).get("max_storage", -1)
    if most > 0:
        yield _Limit("the server's max_file_store", most, data["storage"])


def about(server: str) -> dict[str, Any]:
    """Return the question that only one server of a cluster answers."""
    return {"config": True, "server_name": server, "exact_match": True}
