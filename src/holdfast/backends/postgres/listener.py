"""Wake-ups: LISTEN on a connection of its own."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from holdfast.backends.postgres.pool import connect
from holdfast.contracts import STORE_ERRORS, raise_if_cancelled

log = logging.getLogger(__name__)

_PAUSE = 1.0


class PostgresListener:
    """Calls `wake` when a channel of interest was published to. Reconnects by itself."""

    def __init__(
        self,
        url: str,
        channels: Sequence[str],
        wake: Callable[[str], None],
        failed: Callable[[BaseException], None],
    ) -> None:
        self._failed = failed
        self._url, self._channels, self._wake = url, frozenset(channels), wake
        self._task = asyncio.create_task(self._listen())

    async def close(self) -> None:
        """Stop listening."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _listen(self) -> None:
        while True:
            try:
                async with await connect(self._url) as connection:
                    await connection.execute("SET application_name = 'holdfast listener'")
                    await connection.execute("LISTEN holdfast")
                    for channel in self._channels:  # what was said before we listened is found by a poll
                        self._wake(channel)
                    async for notice in connection.notifies():
                        if notice.payload in self._channels:
                            self._wake(notice.payload)
            except STORE_ERRORS as error:  # whatever it is: polls go on meanwhile, and it listens again
                raise_if_cancelled(error)
                log.warning("the listener failed and connects again: %r", error)
                self._failed(error)
                await asyncio.sleep(_PAUSE)
