"""The nemesis: brings faults to the server and to the network before it, and heals them."""

from __future__ import annotations

import asyncio

from holdfast_chaos.archive_store import FaultyS3
from holdfast_chaos.disk import Disk
from holdfast_chaos.final_state import ServerUnderTest
from holdfast_chaos.proxy import Proxy
from holdfast_chaos.schedule import ServerFault

_LATENCY, _DRIP, _REPLIES = 0.15, 20_000, 3


class Nemesis:
    """Against one server. Without a proxy it leaves the network alone, without a disk the power."""

    def __init__(
        self, store: ServerUnderTest, proxy: Proxy | None, disk: Disk | None, s3: FaultyS3 | None
    ) -> None:
        self._store, self._proxy, self._disk, self._s3 = store, proxy, disk, s3

    async def inject(self, fault: ServerFault) -> None:
        """Bring one fault, let it last, and heal it."""
        match fault.kind:
            case "server":
                await self._restart()
            case "power" if self._disk is not None:
                await self._restart(self._disk)
            case "disk" if self._disk is not None:
                await asyncio.to_thread(self._disk.fill)
                await asyncio.sleep(fault.length)
                await asyncio.to_thread(self._disk.free)
                await self._restart()  # a server that met a full disk may have given up, or refuse to write
            case "s3" if self._s3 is not None:
                self._s3.script.extend(fault.script)
            case _ if self._proxy is not None:
                await self._disturb(self._proxy, fault)

    async def _restart(self, disk: Disk | None = None) -> None:
        if self._store.server.running:
            await asyncio.to_thread(self._store.server.kill)
        if disk is not None:
            await asyncio.to_thread(disk.cut)
        await asyncio.to_thread(self._store.server.start)

    async def _disturb(self, proxy: Proxy, fault: ServerFault) -> None:
        match fault.kind:
            case "delay":
                await proxy.delay(_LATENCY)
            case "drip":
                await proxy.drip(_DRIP)
            case "drop_reply":
                await proxy.drop_reply(_REPLIES)
            case _:
                await getattr(proxy, fault.kind)()
        await asyncio.sleep(fault.length)
        await proxy.heal()

    async def heal(self) -> None:
        """End every fault: the network is open, and the server runs."""
        if self._s3 is not None:
            self._s3.script.clear()
        if self._proxy is not None:
            await self._proxy.heal()
        if not await asyncio.to_thread(lambda: self._store.server.running):
            await asyncio.to_thread(self._store.server.start)
