"""The nemesis: strikes the server and the way to it, and heals what it struck."""

from __future__ import annotations

import asyncio

from holdfast.chaos.disk import Disk
from holdfast.chaos.evidence import Store
from holdfast.chaos.proxy import Proxy
from holdfast.chaos.s3 import FaultyWay
from holdfast.chaos.schedule import Blow

_LATENCY, _DRIP, _REPLIES = 0.15, 20_000, 3


class Nemesis:
    """Against one server. Without a proxy it leaves the network alone, without a disk the power."""

    def __init__(self, store: Store, proxy: Proxy | None, disk: Disk | None, way: FaultyWay | None) -> None:
        self._store, self._proxy, self._disk, self._way = store, proxy, disk, way

    async def strike(self, blow: Blow) -> None:
        """Deal one blow, let it last, and heal it."""
        match blow.kind:
            case "server":
                await self._restart()
            case "power" if self._disk is not None:
                await self._restart(self._disk)
            case "disk" if self._disk is not None:
                await asyncio.to_thread(self._disk.fill)
                await asyncio.sleep(blow.length)
                await asyncio.to_thread(self._disk.free)
                await self._restart()  # a server that met a full disk may have given up, or refuse to write
            case "s3" if self._way is not None:
                self._way.script.extend(blow.script)
            case _ if self._proxy is not None:
                await self._disturb(self._proxy, blow)

    async def _restart(self, disk: Disk | None = None) -> None:
        if self._store.server.running:
            await asyncio.to_thread(self._store.server.kill)
        if disk is not None:
            await asyncio.to_thread(disk.cut)
        await asyncio.to_thread(self._store.server.start)

    async def _disturb(self, proxy: Proxy, blow: Blow) -> None:
        match blow.kind:
            case "delay":
                await proxy.delay(_LATENCY)
            case "drip":
                await proxy.drip(_DRIP)
            case "drop_reply":
                await proxy.drop_reply(_REPLIES)
            case _:
                await getattr(proxy, blow.kind)()
        await asyncio.sleep(blow.length)
        await proxy.heal()

    async def revive(self) -> None:
        """Everything is as it was before: the ways are open, and the server runs."""
        if self._way is not None:
            self._way.script.clear()
        if self._proxy is not None:
            await self._proxy.heal()
        if not await asyncio.to_thread(lambda: self._store.server.running):
            await asyncio.to_thread(self._store.server.start)
