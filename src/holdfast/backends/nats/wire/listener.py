"""Wake-ups: a core subscription to the channels' own subjects, on a connection of its own."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress

from nats.aio.client import Client
from nats.aio.msg import Msg

from holdfast.backends.nats.wire import subjects
from holdfast.backends.nats.wire.servers import parse_servers
from holdfast.backends.notices import deliver
from holdfast.contracts import STORE_ERRORS, raise_if_cancelled

log = logging.getLogger(__name__)

_PAUSE = 1.0


class NatsListener:
    """Calls `wake` when something was published to a channel, by whomever, and tells of jobs of it that were
    cancelled. Reconnects by itself."""

    def __init__(
        self,
        url: str,
        channels: Sequence[str],
        wake: Callable[[str], None],
        failed: Callable[[BaseException], None],
        cancelled: Callable[[str, str, str], None],
    ) -> None:
        self._failed, self._cancelled = failed, cancelled
        self._url, self._channels, self._wake = url, list(channels), wake
        self._failed = failed
        self._servers, self._channels, self._wake = parse_servers(url), list(channels), wake
        self._task = asyncio.create_task(self._listen())

    async def close(self) -> None:
        """Stop listening."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _listen(self) -> None:
        while True:
            client, lost = Client(), asyncio.Event()
            try:
                await self._connect(client, lost)
                for channel in self._channels:  # what was said before we listened is found by a poll
                    self._wake(channel)
                    self._cancelled(channel, "", "")
                await lost.wait()
                raise ConnectionError("the connection was lost")
            except STORE_ERRORS as error:  # whatever it is: polls go on meanwhile, and it listens again
                raise_if_cancelled(error)
                log.warning("the listener failed and connects again: %r", error)
                self._failed(error)
            finally:
                with suppress(Exception):
                    await client.close()
            await asyncio.sleep(_PAUSE)

    async def _connect(self, client: Client, lost: asyncio.Event) -> None:
        async def closed() -> None:
            lost.set()

        async def ignore(error: Exception) -> None:
            """`closed` tells of a lost connection; a slow listener only misses what it would hear again."""

        await client.connect(
            list(self._servers.urls),
            allow_reconnect=False,
            max_reconnect_attempts=1,
            reconnect_time_wait=0,
            closed_cb=closed,
            error_cb=ignore,
            **self._servers.pings,
        )
        for channel in self._channels:

            async def hear(message: Msg, channel: str = channel) -> None:
                text = "/".join(filter(None, (channel, message.data.decode("utf-8", "replace"))))
                deliver(text, self._channels, self._wake, self._cancelled)

            async def overhear(message: Msg, channel: str = channel) -> None:
                # A message of a batch is heard before the batch is committed, and its publisher tells then.
                if subjects.BATCH not in (message.headers or {}):
                    self._wake(channel)

            await client.subscribe(channel, cb=overhear)
            await client.subscribe(subjects.wake(channel), cb=hear)
        await client.flush()
