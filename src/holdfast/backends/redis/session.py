"""Sessions: links to one Redis that run our scripts and speak the one error tree."""

from __future__ import annotations

import re
from collections.abc import Awaitable
from typing import Any, TypeVar

from redis.asyncio.connection import AbstractConnection, ConnectionPool
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import NoScriptError, RedisError, ResponseError

from holdfast.backends.redis.errors import is_demoted, redacted, translate
from holdfast.backends.redis.link import Argument, Command, Link
from holdfast.backends.redis.scripts import SCRIPTS
from holdfast.model.errors import InvalidInput, Unavailable

T = TypeVar("T")

SCHEMA = 2
PATIENCE, _CONNECTING = 8.0, 5.0
_REPLIES = {"protocol": 2, "decode_responses": False}  # whatever the URL says: we read them as they come
_FAILURES = (RedisError, OSError, UnicodeError)


class Session:
    """A few links; each call takes the one with the least to do."""

    def __init__(self, url: str, size: int, history: int | None, window: int | None) -> None:
        self.url, self.size = url, size
        self._settings = ("" if history is None else history, "" if window is None else window)
        self._links: list[Link] = []

    async def open(self) -> None:
        """Connect once, so that a wrong URL is said at once."""
        try:
            # Our callers try again; a hidden retry would answer "lease lost" for what it had applied itself.
            # A server that hears and never answers must not hold up whoever asks others as well.
            pool = ConnectionPool.from_url(
                self.url,
                retry=Retry(NoBackoff(), 0),
                socket_timeout=PATIENCE,
                socket_connect_timeout=_CONNECTING,
            )
            pool.connection_kwargs |= _REPLIES
            self._links = [Link(pool, self._recognise) for _ in range(self.size)]
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

    async def run(self, name: str, *arguments: Argument) -> Any:
        """Run a script. One that the server has forgotten is sent again."""
        script, link = SCRIPTS[name], self._link()
        try:
            return await link.call("EVALSHA", script.sha, 0, *arguments)
        except NoScriptError:
            answer = link.call("EVAL", script.text, 0, *arguments)
            return await self._translated(answer, name == "publish")
        except _FAILURES as error:
            raise self._failure(error, name == "publish") from error

    async def call(self, *command: Argument) -> Any:
        """One plain command."""
        return await self._translated(self._link().call(*command))

    async def together(self, *commands: Command) -> list[Any]:
        """Several plain commands on one connection, one directly after the other."""
        return await self._translated(self._link().together(*commands))

    async def transaction(self, *commands: Command) -> list[Any]:
        """Several plain commands with nobody else's between them."""
        *_, answers = await self.together(("MULTI",), *commands, ("EXEC",))
        for answer in answers:
            if isinstance(answer, Exception):
                raise self._failure(answer) from answer
        return list(answers)

    async def run_together(self, *calls: Command) -> list[Any]:
        """Several scripts with nobody else's command between them."""
        scripts = [SCRIPTS[str(name)] for name, *_ in calls]
        # Loaded in the same transaction: a script that were missing would leave half of the work done.
        texts = {script.text for script in scripts}
        answers = await self.transaction(
            *[("SCRIPT", "LOAD", text) for text in texts],
            *[("EVALSHA", script.sha, 0, *call[1:]) for script, call in zip(scripts, calls, strict=True)],
        )
        return answers[len(texts) :]

    async def _recognise(self, connection: AbstractConnection) -> None:
        """See whether this is the server that we knew: a restarted or other one begins a new epoch."""
        run_id = b""
        try:
            await connection.send_command("INFO", "server")
            found = re.search(rb"run_id:(\w+)", bytes(await connection.read_response()))
            run_id = found[1] if found else b""
        except ResponseError:
            pass  # forbidden: then a restart cannot be told
        await connection.send_command("EVAL", SCRIPTS["open"].text, 0, SCHEMA, run_id, *self._settings)
        await connection.read_response()

    def _link(self) -> Link:
        if not self._links:
            raise Unavailable(f"{redacted(self.url)} is not connected; use 'async with connect(...)'")
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
