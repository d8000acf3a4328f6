"""Publishers: processes that publish, each batch again with the same ids until it is acknowledged."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any

from holdfast.bus.client import Bus
from holdfast.bus.spool import Spool
from holdfast.model.errors import Overloaded, Unavailable
from holdfast.model.event import Event
from holdfast_chaos import history
from holdfast_chaos.history import History
from holdfast_chaos.recorder import connect

KINDS = ("ok",) * 12 + ("flaky", "flaky", "slow", "fail", "terminal", "bad")
"""What becomes of an event: `fail` uses up its attempts, `bad` has a total that no warehouse takes."""
SIZES = (1,) * 20 + (5,) * 6 + (40,) * 3 + (210,)
"""How many events a batch has. The largest goes by the bulk way of its store."""
LARGE, KEYS = 150_000, 7
_EVENT_PAUSE, _FULL, _SPOOLED, _LATER, _URGENT = 0.003, 0.1, 100, 1.5, 5


def event_of(name: str, kind: str, key: str | None, size: int = 0) -> Event:
    """An event that says itself what is to become of it."""
    total = "none" if kind == "bad" else len(name)
    data = {"of": name, "do": kind, "total": total} | ({"ballast": "x" * size} if size else {})
    return Event(data, name, key=key)


def batch_of(
    prefix: str, number: int, samples: list[bytes], sizes: Sequence[int] = SIZES, keys: int = KEYS
) -> list[Event]:
    """The events of a number: always the same ones."""
    chance = random.Random(f"{prefix} {number}")
    if samples:
        names = [f"{prefix}-{number}-{part}" for part in range(chance.choice(sizes))]
        return [Event(chance.choice(samples), name, key=f"key-{chance.randrange(keys)}") for name in names]
    size = LARGE if chance.random() < 0.01 else 0
    return [
        event_of(f"{prefix}-{number}-{part}", chance.choice(KINDS), f"key-{chance.randrange(keys)}", size)
        for part in range(1 if size else chance.choice(sizes))
    ]


def left_by(before: Sequence[str]) -> list[Event]:
    """What predecessors asked for and had no answer to. Each of them settles that first, so whoever was told
    anything has settled all before it."""
    left: dict[str, Event] = {}
    for path in map(Path, reversed(before)):
        calls = history.read(path.parent, path.stem) if path.exists() else []
        told = {item["id"] for call in history.of(calls, "told") for item in call.items}
        for item in (item for call in history.of(calls, "asked") for item in call.items):
            if item["id"] not in told:
                left[item["id"]] = Event(item["data"].encode(), item["id"], key=item["key"])
        if told:
            break
    return list(left.values())


class Producer:
    """Publishes without end. It also notes itself what it asks for: with a spool, no store may hear of it."""

    def __init__(self, bus: Bus, spool: Spool | None, notes: History, spec: dict[str, Any]) -> None:
        self._bus, self._spool, self._notes, self._spec = bus, spool, notes, spec

    async def run(self) -> None:
        """Publish what is left over, then one batch after the other."""
        if rest := left_by(self._spec.get("before", ())):
            await self._acked(rest)
        samples = Path(self._spec["samples"]).read_bytes().splitlines() if "samples" in self._spec else []
        for number in count():
            if Path(self._spec["until"]).exists():
                return
            if self._spool is None or len(self._spool) < _SPOOLED:
                sizes, keys = self._spec.get("sizes", SIZES), self._spec.get("keys", KEYS)
                await self._acked(batch_of(self._spec["prefix"], number, samples, sizes, keys))
            else:
                await asyncio.sleep(_FULL)

    async def _acked(self, events: list[Event]) -> None:
        """Publish until there was an answer: the outcome of a call without one is unknown."""
        urgent = random.random() < self._spec.get("urgent", 0.0)
        if urgent:
            events = [each._replace(key=None) for each in events]
        items = [{"id": each.id, "data": each.data.decode(), "key": each.key} for each in events]
        self._notes.happened("asked", *items)
        later = random.random() < self._spec.get("later", 0.0)
        at = datetime.now(UTC) + timedelta(seconds=random.uniform(0, _LATER)) if later else None
        while True:
            try:
                receipts = await self._bus.publish_many(
                    self._spec["channel"], events, at=at, priority=_URGENT if urgent else 0
                )
            except Overloaded:
                await asyncio.sleep(self._spec.get("full", _FULL))
            except Unavailable:
                await asyncio.sleep(_EVENT_PAUSE)
            else:
                break
        spooled = [{"id": each.id} for each in receipts if not each.position]
        self._notes.happened("told", *({"id": each.id} for each in events))
        if spooled:
            self._notes.happened("spooled", *({"channel": self._spec["channel"]} | each for each in spooled))
        if "recent" in self._spec:
            Path(self._spec["recent"]).write_text("\n".join(each.id for each in events))
        await asyncio.sleep(len(events) * self._spec.get("pause", _EVENT_PAUSE))


async def producer(spec: dict[str, Any]) -> None:
    """Publish without end: single events and batches, of several kinds, some of them large.

    Specification: url, history, channel, prefix, until (a file that ends it), and optionally spool (a
    folder), samples (a file with the data of an event in each line), before (the histories of its
    predecessors: what they had no answer to is published again), sizes (of its batches), keys (how many),
    pause (seconds for each event), later (the share of batches that are scheduled), urgent (the share that
    overtakes what waits, without keys: claims take it in the moment in which it is published), full (seconds
    to wait when a consumer is full) and recent (a file that has the ids of its last batch).
    """
    store, notes = connect(spec)
    spool = Spool(Path(spec["spool"])) if "spool" in spec else None
    async with Bus([store], spool=spool) as bus:
        await Producer(bus, spool, notes, spec).run()
        while spool is not None and len(spool):  # the last one sends what all before it have left
            await asyncio.sleep(_FULL)


async def acked(bus: Bus, channel: str, events: list[Event]) -> None:
    """Publish until the store has answered: the outcome of a call without an answer is unknown."""
    while True:
        try:
            await bus.publish_many(channel, events)
        except Unavailable:
            await asyncio.sleep(0.05)
        else:
            return


async def publisher(spec: dict[str, Any]) -> None:
    """Publish singles one by one, or batches, each again with the same ids until it is acknowledged.

    Specification: url, history, channel, prefix, batch (1: the single path), and count, or until (a file that
    ends it). With a file it pauses after each batch in proportion to its size, so that workers keep up.
    """
    store, _ = connect(spec)
    end = Path(spec["until"]) if "until" in spec else None
    async with Bus([store]) as bus:
        for number in count() if end else range(spec["count"]):
            if end and end.exists():
                return
            ids = [f"{spec['prefix']}-{number}-{part}" for part in range(spec["batch"])]
            await acked(bus, spec["channel"], [Event({"of": name}, name) for name in ids])
            await asyncio.sleep(len(ids) * 0.004 if end else 0)
