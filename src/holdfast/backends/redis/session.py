"""Sessions: links to one Redis that run our scripts, and what redis-py, the server and the scripts raise, in
the one error tree."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Awaitable, Sequence
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any, NamedTuple, TypeVar

from redis.asyncio.connection import AbstractConnection, ConnectionPool
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import (
    AskError,
    ClusterCrossSlotError,
    ClusterDownError,
    ExecAbortError,
    NoPermissionError,
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    ResponseError,
)

from holdfast.backends.redis.link import Argument, Command, Link
from holdfast.backends.redis.pool import close, hosts, make_pool, replicas
from holdfast.model.errors import (
    HoldfastError,
    InvalidInput,
    InvalidPolicy,
    LockLost,
    NotFound,
    Outdated,
    Overloaded,
    Unavailable,
)

T = TypeVar("T")

SCHEMA = 3
PATIENCE, _CONNECTING = 8.0, 5.0
_REPLICATED = 5_000  # milliseconds in which replicas have to have a publish
_PUBLISH = "log/publish"
_REPLIES = {"protocol": 2, "decode_responses": False}  # whatever the URL says: we read them as they come
_FAILURES = (RedisError, OSError, UnicodeError)
_USES = "-- uses:"
# A function at the top of a part begins and ends at the margin, or is one line.
_FUNCTION = re.compile(r"^(local function \w+\((?:.* end|.*\n(?:(?!end$).*\n)*end))$", re.MULTILINE)
_FUNCTION_NAME, _WORD = re.compile(r"local function (\w+)\("), re.compile(r"\w+")

# Answers of a server that cannot take the call now: it is busy, has no disk, or is a replica by now.
_DEMOTED = "READONLY"
_LATER = (_DEMOTED, "BUSY", "MISCONF", "NOREPLICAS", "UNKILLABLE", "Script killed")
_LATER_TYPES = (ReadOnlyError, ClusterDownError, ExecAbortError)
_FORBIDDEN = ("The user executing the script can't", "ACL failure in script")
# Before 7.0 what a command in a script answered stands behind the place in the script.
_PLACE = re.compile(r"Error running script \(call to \w+\): @user_script:\d+: (?:@?user_script: ?\d+: )?-?")
_KINDS: dict[str, type[HoldfastError]] = {
    "INPUT": InvalidInput,
    "POLICY": InvalidPolicy,
    "NOTFOUND": NotFound,
    "OUTDATED": Outdated,
    "SCHEMA": HoldfastError,
}
# Newer servers append where the script stood.
_OURS = re.compile(r"HF(INPUT|POLICY|NOTFOUND|OUTDATED|SCHEMA|LOCK) ?(.*?)(?:,? script: .*)?$", re.DOTALL)


class Script(NamedTuple):
    """A script as the server gets it, and the hash under which the server remembers it."""

    text: str
    sha: str


def _load() -> dict[str, Script]:
    """Load each .lua file by its folder and name, with the shared parts that its first line names, and with
    those that they name."""
    folder = files(__package__).joinpath("lua")
    scripts = {}
    for noun in folder.iterdir():
        for file in noun.iterdir():
            if noun.name == "shared" or not file.name.endswith(".lua"):
                continue
            parts: dict[str, str] = {}
            _add(parts, f"{noun.name}/{file.name.removesuffix('.lua')}", folder)
            whole = "\n".join(_used([_without_comments(part) for part in parts.values()]))
            sha = hashlib.sha1(whole.encode(), usedforsecurity=False).hexdigest()
            scripts[list(parts)[-1]] = Script(whole, sha)
    return scripts


def _add(parts: dict[str, str], name: str, folder: Traversable) -> None:
    """Add a part behind those that it uses."""
    if name in parts:
        return
    text = folder.joinpath(*f"{name}.lua".split("/")).read_text()
    first = text.partition("\n")[0]
    if not first.startswith(_USES):
        raise ValueError(f"{name}.lua does not begin with {_USES!r}")
    for used in first[len(_USES) :].split():
        _add(parts, f"shared/{used}", folder)
    parts[name] = text


def _used(parts: Sequence[str]) -> list[str]:
    """The parts without those functions that nothing behind them names: each call of a script makes all of
    its functions anew, which takes longer than most of its commands."""
    pieces = [piece for part in parts for piece in _FUNCTION.split(part)]
    used: list[str] = []
    words: set[str] = set()
    for piece in reversed(pieces):
        name = _FUNCTION_NAME.match(piece)
        if name is None or name[1] in words:
            used.append(piece)
            words.update(_WORD.findall(piece))
    return used[::-1]


def _without_comments(text: str) -> str:
    """The server need not carry our prose."""
    return "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("--"))


SCRIPTS = _load()
"""By name, as `leases/claim`."""


class NotPermitted(Unavailable):
    """The user of the URL may not do this."""


class Session:
    """A few links; each call takes the one with the least to do."""

    def __init__(self, url: str, size: int, history: int | None, window: int | None) -> None:
        self.url, self.size = url, size
        self._settings = ("" if history is None else history, "" if window is None else window)
        self._links: list[Link] = []
        self._pool: ConnectionPool | None = None
        self.replicas = replicas(url)

    async def open(self) -> None:
        """Connect once, so that a wrong URL is said at once."""
        try:
            # Our callers try again; a hidden retry would answer "lease lost" for what it had applied itself.
            # A server that hears and never answers must not hold up whoever asks others as well.
            self._pool = pool = make_pool(
                self.url, retry=Retry(NoBackoff(), 0), socket_connect_timeout=_CONNECTING
            )
            # The links watch the time: before Python 3.12 redis-py's timeout is a task for each write.
            patience = pool.connection_kwargs.get("socket_timeout") or PATIENCE
            pool.connection_kwargs |= _REPLIES | {"socket_timeout": None}
            self._links = [Link(pool, self._recognise, patience) for _ in range(self.size)]
        except (ValueError, TypeError) as error:  # TypeError: an option that redis-py does not know
            raise InvalidInput(f"the URL of the Redis store cannot be used: {error}") from None
        try:
            await self.call("PING")
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Give the connections back."""
        links, self._links = self._links, []
        for link in links:
            await link.close()
        if self._pool is not None:
            await close(self._pool)

    async def run(self, name: str, *arguments: Argument) -> Any:
        """Run a script. One that the server has forgotten is sent again."""
        script, link = SCRIPTS[name], self._link()
        try:
            return await self._answer(link, name, "EVALSHA", script.sha, 0, *arguments)
        except NoScriptError:
            answer = self._answer(link, name, "EVAL", script.text, 0, *arguments)
            return await self._translated(answer, name == _PUBLISH)
        except _FAILURES as error:
            raise self._failure(error, name == _PUBLISH) from error

    async def _answer(self, link: Link, name: str, *command: Argument) -> Any:
        """Return the reply to a script; to a publish, once replicas have it where the URL asks for that."""
        if name != _PUBLISH or not self.replicas:
            return await link.call(*command)
        answer, copies = await link.together(command, self._wait)
        self._check_copies(copies)
        return answer

    @property
    def _wait(self) -> Command:
        """Wait for replicas: for whatever the server had before this, also a repeat of what was there."""
        return "WAIT", self.replicas, _REPLICATED

    def _check_copies(self, copies: int) -> None:
        if copies < self.replicas:
            raise Unavailable(
                f"Redis at {hosts(self.url)} has the publish, and {copies} of the {self.replicas} replicas "
                "that its URL asks for; publish it again, which is safe"
            )

    async def call(self, *command: Argument) -> Any:
        """One plain command."""
        return await self._translated(self._link().call(*command))

    async def together(self, *commands: Command) -> list[Any]:
        """Several plain commands on one connection, one directly after the other."""
        return await self._translated(self._link().together(*commands))

    async def publish_together(self, *calls: Command) -> list[Any]:
        """Run the scripts of one publish with nobody else's command between them."""
        scripts = [SCRIPTS[str(name)] for name, *_ in calls]
        # Loaded in the same transaction: a script that were missing would leave half of the work done.
        texts = {script.text for script in scripts}
        commands: list[Command] = [
            ("MULTI",),
            *[("SCRIPT", "LOAD", text) for text in texts],
            *[("EVALSHA", script.sha, 0, *call[1:]) for script, call in zip(scripts, calls, strict=True)],
            ("EXEC",),
        ]
        # Not every user may WAIT.
        replies = await self.together(*commands, *[self._wait] * bool(self.replicas))
        answers = replies[len(commands) - 1]
        for answer in answers:
            if isinstance(answer, Exception):
                raise self._failure(answer) from answer
        if self.replicas:
            self._check_copies(replies[-1])
        return list(answers[len(texts) :])

    async def _recognise(self, connection: AbstractConnection) -> None:
        """See whether this is the server that we knew: a restarted or other one begins a new epoch."""
        run_id = b""
        try:
            await connection.send_command("INFO", "server")
            found = re.search(rb"run_id:(\w+)", bytes(await connection.read_response()))
            run_id = found[1] if found else b""
        except ResponseError:
            pass  # forbidden: then a restart cannot be told
        await connection.send_command("EVAL", SCRIPTS["store/open"].text, 0, SCHEMA, run_id, *self._settings)
        await connection.read_response()

    def _link(self) -> Link:
        if not self._links:
            raise Unavailable(f"{hosts(self.url)} is not connected; use 'async with connect(...)'")
        return min(self._links, key=lambda link: link.load)

    async def _translated(self, answer: Awaitable[T], publishing: bool = True) -> T:
        try:
            return await answer
        except _FAILURES as error:
            raise self._failure(error, publishing) from error

    def _failure(self, error: Exception, publishing: bool = True) -> Exception:
        if is_demoted(error):  # the URL may lead to another server by now
            for link in self._links:
                link.renew()
        return translate(error, self.url, publishing=publishing)


def is_demoted(error: Exception) -> bool:
    """Whether the server is a replica by now: another one takes the writes."""
    return isinstance(error, ReadOnlyError) or _said(error).startswith(_DEMOTED)


def translate(error: Exception, url: str, *, publishing: bool) -> Exception:
    """The error as our callers know it; one that we cannot place is returned as it is."""
    text = _said(error)
    if isinstance(error, UnicodeError):
        return InvalidInput(f"{getattr(error, 'object', text)!r} is no text that a store can hold")
    if isinstance(error, OutOfMemoryError) or "OOM command not allowed" in text:
        kind = Overloaded if publishing else Unavailable
        return kind(f"Redis at {hosts(url)} has reached its maxmemory; raise it, or trim: {text}")
    if isinstance(error, NoPermissionError) or text.startswith(_FORBIDDEN):
        return NotPermitted(f"Redis at {hosts(url)} does not let this user do that: {text}")
    if not isinstance(error, ResponseError) or isinstance(error, _LATER_TYPES) or text.startswith(_LATER):
        return Unavailable(f"Redis at {hosts(url)} did not answer: {text or type(error).__name__}")
    if isinstance(error, AskError | ClusterCrossSlotError) or "in a cluster node" in text:
        return InvalidInput(
            f"Redis at {hosts(url)} is part of a cluster, whose slots our scripts span; "
            "use a server or a primary with replicas, several as partitions"
        )
    if "DB index" in text:
        return InvalidInput(f"Redis at {hosts(url)} has no such database: {text}")
    if "WRONGTYPE" in text:
        return InvalidInput(f"a key that it needs holds something of another kind: {text}")
    ours = _OURS.search(text)
    if ours is None:
        return error
    kind_name, message = ours.groups()
    if kind_name == "LOCK":
        name, _, token = message.rpartition(" ")
        return LockLost(name, int(token))
    if kind_name == "SCHEMA":
        advice = (
            "is newer than this version; upgrade holdfast"
            if int(message) > SCHEMA
            else "an older version made; drain it with that version, and begin with an empty store"
        )
        message = f"the store has schema {message}, which {advice}"
    return _KINDS[kind_name](message)


def _said(error: Exception) -> str:
    return _PLACE.sub("", str(error).strip(), count=1)
