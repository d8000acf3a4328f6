"""Defects of the archiver: the cursor, or the manifest, is ahead of the objects (I7, I8)."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Any

from holdfast.chaos.history import Call
from holdfast.chaos.judge import judge
from holdfast.chaos.judge.archive import audit
from holdfast.chaos.plain import archive as plain
from holdfast.chaos.rig import Rig
from holdfast.contracts import Backend
from holdfast.model.event import Event
from holdfast.pipeline.archive.commit import Committer
from holdfast.pipeline.archive.manifest import Manifest
from holdfast.pipeline.archive.policy import ARCHIVER, ArchivePolicy
from holdfast.pipeline.offsets import Spot
from holdfast.pipeline.stores import ObjectStore, open_store
from holdfast.wiring import backend

CHANNEL, EVENTS, SIZE = "gbe.events.audit.change", 20, 5
_MINUTE = timedelta(minutes=1)


class Careless(Committer):
    """The cursor is at the end before anything is written."""

    async def recover(self) -> list[Manifest]:
        self._before = await super().cursors()
        for spot, position in self._before.items():
            store = self._backends[spot.partition]
            last = (await store.extent(spot.channel)).last
            await store.move(spot.channel, self._policy.consumer, position, last or "")
        return []

    async def cursors(self) -> dict[Spot, str | None]:
        return self._before


class WriteBehind:
    """An object store that says yes to an object and keeps it in memory."""

    def __init__(self, inner: ObjectStore) -> None:
        self.inner, self._later = inner, dict[str, bytes]()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def put(self, name: str, data: bytes) -> bool:
        if name.startswith("archive/"):
            self._later[name] = data
            return True
        return self.inner.put(name, data)


async def archive(spec: dict[str, Any]) -> None:
    """Archive everything. Specification: url, destination, and defect: careless, write-behind, or none."""
    if spec["defect"] == "careless":
        vars(plain)["Committer"] = Careless
    opened, cold = backend(spec["url"]), open_store(spec["destination"])
    await opened.open()
    store: Any = WriteBehind(cold) if spec["defect"] == "write-behind" else cold
    await plain.archive([opened], store, _policy(spec["destination"]), EVENTS)


def _policy(destination: str) -> ArchivePolicy:
    return ArchivePolicy(CHANNEL, destination, batch_size=SIZE)


async def _archived(rig: Rig, point: str, defect: str) -> str:
    """Events, and an archiver that dies there; answers where it archived to."""
    destination = str(rig.folder / "cold")
    async with rig.bus("publisher") as bus:
        await bus.publish_many(CHANNEL, [Event({"n": n}, f"e-{n}") for n in range(EVENTS)])
    spec = {"part": "archive.archive", "destination": destination, "defect": defect}
    await rig.start("accused", f"{point}=kill", **spec).killed()
    return destination


async def cursor_first(rig: Rig, sound: bool) -> set[str]:
    """An archiver dies before its first object, another one goes on, and old events are trimmed."""
    destination = await _archived(rig, "archive.before_put", "" if sound else "careless")
    store = rig.recorded("sweeper")
    await store.open()
    await plain.archive([store], open_store(destination), _policy(destination), EVENTS)
    await _trim(store)
    await store.close()
    return await _broken(rig, destination)


async def write_behind(rig: Rig, sound: bool) -> set[str]:
    """An archiver dies after it has moved its cursor."""
    destination = await _archived(rig, "archive.after_cursor", "" if sound else "write-behind")
    return await _broken(rig, destination)


async def rotten_object(rig: Rig, sound: bool) -> set[str]:
    """A byte of an archived object changes."""
    destination = await _archived(rig, "archive.after_cursor", "")
    if not sound:
        path = next(path for path in sorted(Path(destination, "archive").rglob("*.gz")))
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
    return await _broken(rig, destination)


async def _trim(store: Backend) -> None:
    lock = await store.lock("gbe:lock:sweeper", "control", _MINUTE)
    if lock is None:
        raise RuntimeError("nobody else sweeps here, and yet the lock was not to be had")
    await store.advance(_MINUTE)
    await store.trim(CHANNEL, await store.now(), 10 * EVENTS, lock)


async def _broken(rig: Rig, destination: str) -> set[str]:
    """What the histories, the store and the objects say together."""
    found = await asyncio.to_thread(audit, open_store(destination))
    items = [{"channel": CHANNEL, "consumer": ARCHIVER, "id": name} for name in found.ids]
    calls = [*rig.calls(), Call("auditor", "archived", items, outcome="ok")]
    broken = {violation.invariant for violation in judge(calls, await rig.evidence())}
    return broken | ({"I8"} if found.wrong else set())
