"""Wake-ups: pub/sub on a connection of its own."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from redis.asyncio import Redis

from holdfast.backends.notices import deliver
from holdfast.backends.redis import keys
from holdfast.backends.redis.pool import opened
from holdfast.contracts import STORE_ERRORS, raise_if_cancelled

log = logging.getLogger(__name__)

_PAUSE = 1.0


class RedisListener:
    """Calls `wake` when a channel of interest was published to, and tells of jobs of it that were cancelled.
    Reconnects by itself.

    What another client appends says nothing here: polling finds it.
    """

    def __init__(
        self,
        url: str,
        channels: Sequence[str],
        wake: Callable[[str], None],
        failed: Callable[[BaseException], None],
        cancelled: Callable[[str, str, str], None],
    ) -> None:
        self._failed, self._cancelled = failed, cancelled
        self._url, self._channels, self._wake = url, frozenset(channels), wake
        self._task = asyncio.create_task(self._listen())

    async def close(self) -> None:
        """Stop listening."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _listen(self) -> None:
        while True:
            try:
                async with (
                    opened(self._url, protocol=2) as pool,
                    Redis(connection_pool=pool) as client,
                    client.pubsub() as messages,
                ):
                    await messages.subscribe(keys.WAKE)
                    async for message in messages.listen():
                        self._handle(message)
            except STORE_ERRORS as error:  # whatever it is: polls go on meanwhile, and it listens again
                raise_if_cancelled(error)
                log.warning("the listener failed and connects again: %r", error)
                self._failed(error)
                await asyncio.sleep(_PAUSE)

    def _handle(self, message: dict[str, object]) -> None:
        if message["type"] == "subscribe":
            for each in self._channels:  # what was said before we listened is found by a poll
                self._wake(each)
                self._cancelled(each, "", "")
        elif message["type"] == "message":
            data = message["data"]  # text where the URL asks for it
            text = data.decode("utf-8", "replace") if isinstance(data, bytes) else str(data)
            deliver(text, self._channels, self._wake, self._cancelled)
