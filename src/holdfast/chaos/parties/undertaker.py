"""A process that moves dead letters in chunks until none is left, or removes their consumer step by step.

Specification: url, history, channel, consumer, verb (revive, purge or remove), chunk. What it revives gets
other data.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from holdfast.chaos.history import History
from holdfast.contracts import Backend
from holdfast.model.deadletters import DeadFilter
from holdfast.wiring import backend

PATCH = b'{"patched": true}'


async def step(store: Backend, verb: str, channel: str, consumer: str, chunk: int) -> int | None:
    """One chunk: how many it moved, or None once there is nothing left."""
    if verb == "remove":
        removal = await store.remove_consumer(channel, consumer, chunk)
        return None if removal.done else removal.jobs + removal.dead + removal.history
    page = await store.dead_letters(DeadFilter(channel, consumer), None, chunk)
    ids = [letter.record.id for letter in page.letters]
    if not ids:
        return None
    if verb == "revive":
        return sum(await store.revive(channel, consumer, ids, PATCH))
    return sum(await store.purge(channel, consumer, ids))


async def main(spec: dict[str, Any]) -> None:
    notes, store = History(Path(spec["history"])), backend(spec["url"])
    await store.open()
    of = (spec["verb"], spec["channel"], spec["consumer"], spec["chunk"])
    while (moved := await step(store, *of)) is not None:
        notes.happened("moved", {"count": moved})
    await store.close()
