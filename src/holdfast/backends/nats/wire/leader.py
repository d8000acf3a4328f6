"""The leader: which of a cluster's servers leads the stream, and a connection to it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress

import nats.errors
import orjson
from nats.aio.client import Client
from nats.aio.msg import Msg

from holdfast.backends.nats.wire import subjects
from holdfast.backends.nats.wire.parser import Receiver, ReplyClient
from holdfast.backends.nats.wire.servers import Servers, discovered

STREAM_INFO = f"$JS.API.STREAM.INFO.{subjects.STREAM}"
_LEADER_ELECTED = f"$JS.EVENT.ADVISORY.STREAM.LEADER_ELECTED.{subjects.STREAM}"
_CONNECT_SECONDS, _NOBODY_LEADS = 2, 10008
_UNANSWERED, _ASK_AGAIN = 0.5, 0.1
"""Seconds: who asks while nobody leads gets no reply, and asks again."""


class LeaderSearch:
    """Connects to all servers of the URL at once, and, where none of them leads, to those they tell of."""

    def __init__(
        self,
        url: str,
        servers: Servers,
        receivers: Mapping[bytes, Receiver],
        lost: Callable[[Client], None],
        elected: Callable[[Msg], Awaitable[None]],
    ) -> None:
        self._url, self._servers, self._receivers = url, servers, receivers
        self._lost, self._elected = lost, elected
        self.made: dict[str, ReplyClient] = {}
        """Every connection that was made, by the server's name; whoever asked closes them."""

    async def run(self) -> tuple[ReplyClient, str | None]:
        """Return a connection, and who leads the stream; None where that makes no difference. It leads to any
        server where the leader cannot be reached."""
        untried, tried = list(self._servers.urls), set[str]()
        while untried:
            tried |= set(untried)
            coming = {asyncio.create_task(self._connect_to(url)) for url in untried}
            try:
                if found := await self._first(coming):
                    return found
            finally:
                for each in coming:
                    each.cancel()
                ended = await asyncio.gather(*coming, return_exceptions=True)
            if not self.made:
                raise next(each for each in ended if isinstance(each, Exception))
            told = (at for client in self.made.values() for at in discovered(self._url, client.server_info))
            untried = [each for each in dict.fromkeys(told) if each not in tried]
        chosen = next(iter(self.made.values()))
        return chosen, await _leader(chosen)

    async def _first(self, coming: Iterable[asyncio.Task[None]]) -> tuple[ReplyClient, str | None] | None:
        """Return the connection to the leader as soon as it is made; None when all others are made."""
        left = set(coming)
        while left:
            _, left = await asyncio.wait(left, return_when=asyncio.FIRST_COMPLETED)
            if self.made:
                some = next(iter(self.made.values()))
                leader = await _leader(some)
                if leader is None or leader in self.made:
                    return self.made.get(leader or "", some), leader
        return None

    async def _connect_to(self, url: str) -> None:
        client = ReplyClient(self._receivers)

        async def closed() -> None:
            self._lost(client)

        try:
            await client.connect(
                url,
                allow_reconnect=False,
                connect_timeout=_CONNECT_SECONDS,
                max_reconnect_attempts=1,
                reconnect_time_wait=0,
                error_cb=_ignore,
                closed_cb=closed,
                **self._servers.pings,
            )
            if client.server_info.get("cluster"):
                await client.subscribe(_LEADER_ELECTED, cb=self._elected)
        except BaseException:
            with suppress(AssertionError):  # raised where it was not even begun
                await client.close()  # nats-py leaves a half-made connection open
            raise
        self.made[client.server_name] = client


async def _ignore(error: Exception) -> None:
    """Whoever was waiting hears of a broken connection by itself."""


async def _leader(client: ReplyClient) -> str | None:
    """Return the name of the server that leads the stream; None where any will do: there is no stream yet, or
    it has one copy. Waits while a leader is elected."""
    if not client.server_info.get("cluster"):
        return None
    while True:
        with suppress(TimeoutError, nats.errors.TimeoutError):
            reply = orjson.loads((await client.request(STREAM_INFO, timeout=_UNANSWERED)).data)
            code, cluster = reply.get("error", {}).get("err_code"), reply.get("cluster") or {}
            if code != _NOBODY_LEADS and not cluster.get("replicas"):
                return None
            if cluster.get("leader"):
                return str(cluster["leader"])
        await asyncio.sleep(_ASK_AGAIN)
