"""Capacity: how many channels a token may make, and how many consumers a channel may get."""

from __future__ import annotations

from contextlib import suppress

from holdfast.bus.partitions import Partitions
from holdfast.config.server import Limits
from holdfast.contracts import Backend
from holdfast.model.errors import Unavailable
from holdfast.server.auth.caller import Caller
from holdfast.server.refusals import Conflict


class Capacity:
    """What there is room for. An admin needs none: whoever may do everything may make everything."""

    def __init__(self, partitions: Partitions, limits: Limits) -> None:
        self._partitions, self._limits = partitions, limits
        self._known: set[str] = set()  # no channel is ever removed: those that were seen need no second look

    async def check_channel(self, caller: Caller, channel: str) -> None:
        """Raise `Conflict` where publishing would make one channel more than a token may cover."""
        if channel in self._known or caller.may("admin"):
            return
        self._known.update(await self._channels())
        if channel in self._known:
            return
        if sum(caller.may("publish", name) for name in self._known) >= self._limits.channels:
            raise Conflict(
                f"channel {channel!r} does not exist, and the token covers {self._limits.channels} others; "
                "publish to one of them, or raise server.limits.channels"
            )

    async def check_consumer(self, caller: Caller, store: Backend, channel: str) -> None:
        """Raise `Conflict` where a channel has as many consumers as it may get."""
        if caller.may("admin"):
            return
        if len(await store.consumers(channel)) >= self._limits.consumers:
            raise Conflict(
                f"channel {channel!r} has {self._limits.consumers} consumers; remove one, or raise "
                "server.limits.consumers"
            )

    async def _channels(self) -> set[str]:
        """Those of the stores that answer: publishing goes on without the others."""
        found: set[str] = set()
        for partition in self._partitions.all:
            if partition.usable:
                with suppress(Unavailable):
                    found.update(await partition.backend.channels())
        return found
