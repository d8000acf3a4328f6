"""Operators: processes that act on dead letters, on live jobs and on consumers."""

from __future__ import annotations

import asyncio
import glob
import random
from contextlib import suppress
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any

from holdfast.bus.client import Bus
from holdfast.contracts import Backend
from holdfast.deadletters.items import Filter
from holdfast.deadletters.operation import OperationKind, Request
from holdfast.deadletters.operations import Operations
from holdfast.deadletters.runner import Runner
from holdfast.deadletters.service import DeadLetters
from holdfast.model.deadletters import DeadFilter
from holdfast.model.errors import NotFound, Unavailable
from holdfast.model.event import Event
from holdfast.wiring import backend
from holdfast_chaos import history
from holdfast_chaos.history import History
from holdfast_chaos.recorder import connect

ACTS: tuple[OperationKind, ...] = ("redrive", "redrive", "purge")
_LOCK_TTL, _CHUNK, _BETWEEN, _SELDOM = 2.0, 5, 0.3, 0.2


async def operator(spec: dict[str, Any]) -> None:
    """Operate on dead letters: end what others began, then redrive, purge and recount.

    Specification: url, history, channel, consumers, until (a file after which nothing new is begun), and
    optionally ttl (seconds that it holds a lock).
    """
    store, _ = connect(spec)
    async with Bus([store]) as bus:
        letters = DeadLetters(bus)
        operations = Operations(letters)
        runner = Runner(operations, bus.name, chunk=_CHUNK, ttl=timedelta(seconds=spec.get("ttl", _LOCK_TTL)))
        while True:
            for each in await operations.unfinished():
                await runner.follow(each.id)
            if Path(spec["until"]).exists():
                return
            if random.random() < _SELDOM:
                with suppress(Unavailable):  # a recount waits for the lock of a killed process
                    await letters.verify()
            channel, consumer = random.choice(spec["consumers"])
            wanted = Filter.of(channel=channel, consumer=consumer, kinds=("job",))
            await runner.do(Request(random.choice(ACTS), wanted), "the rig")
            await asyncio.sleep(_BETWEEN)


_RECENT, _PAUSE, _AT_ONCE, _BURST = 1_500, 0.005, 8, 60
_VERBS = (
    *("cancel",) * 50,
    *("cancel one",) * 20,
    *("cancel running",) * 10,
    *("requeue",) * 20,
    *("pause", "subscribe", "subscribe"),
)


class LiveOperator:
    """Cancels, requeues, pauses and changes policies while everything runs."""

    def __init__(self, bus: Bus, spec: dict[str, Any]) -> None:
        self._bus, self._spec, self._channel = bus, spec, str(spec["channel"])
        self._recent: dict[str, None] = {}

    async def run(self) -> None:
        """OperationKind on what was published of late: much of it still waits."""
        while not Path(self._spec["until"]).exists():
            for file in glob.glob(self._spec["recent"]):
                self._recent |= dict.fromkeys(Path(file).read_text().split())
            self._recent = dict.fromkeys(list(self._recent)[-_RECENT:])
            names = random.sample(list(self._recent), min(_AT_ONCE, len(self._recent)))
            await asyncio.gather(*(self._act(random.choice(_VERBS), name) for name in names))
            await asyncio.sleep(self._spec.get("pause", _PAUSE))

    async def _act(self, verb: str, name: str) -> None:
        own = random.choice(self._spec["own"])
        match verb:
            case "pause":
                backend = self._bus.partitions.all[0].backend
                await backend.channels.set_paused(self._channel, own, True)
                await asyncio.sleep(random.uniform(0, 0.6))
                await backend.channels.set_paused(self._channel, own, False)
                await self._cancel_some()  # while all workers claim what has waited
            case "subscribe":
                policy = self._spec["policies"][own]
                backoff = random.choice((["20ms", "100ms"], ["10ms"], ["50ms"]))
                await self._bus.subscribe(self._channel, own, **policy | {"backoff": backoff})
            case "requeue":
                await self._requeue(name)
            case "cancel running":
                await self._bus.cancel(self._channel, name, running=True, by="the rig", reason="a trial")
            case _:
                consumer = own if verb == "cancel one" else None
                await self._bus.cancel(self._channel, name, consumer=consumer)

    async def _cancel_some(self) -> None:
        names = random.sample(list(self._recent), min(_BURST, len(self._recent)))
        for first in range(0, len(names), _AT_ONCE):
            some = names[first : first + _AT_ONCE]
            await asyncio.gather(*(self._bus.cancel(self._channel, name) for name in some))

    async def _requeue(self, name: str) -> None:
        """One of an event's jobs, whatever has become of it."""
        jobs = await self._bus.find_jobs(self._channel, name)
        if known := [job for job in jobs if job.consumer in self._spec["policies"]]:
            job = random.choice(known)
            await self._bus.requeue(self._channel, job.consumer, job.id)


async def live_operator(spec: dict[str, Any]) -> None:
    """Operate on live jobs and consumers.

    Specification: url, history, channel, policies (by consumer), own (the consumers that it alone pauses and
    changes), recent (a pattern for files with the ids of what was just published), until (a file that ends
    it), and optionally pause (seconds after each time that it acts).
    """
    store, _ = connect(spec)
    async with Bus([store]) as bus:
        await LiveOperator(bus, spec).run()


STEP, EVENTS = 20, 60
_UNTIL_NEXT, _STEPS = 0.02, 3


async def remove_all(store: Backend, channel: str, file: Path) -> None:
    """Remove every consumer that joined and has not left. One that is half removed is in no list: histories
    name it."""
    calls = history.read(file.parent, f"*-{file.stem.partition('-')[2]}")
    left = {item["name"] for call in history.of(calls, "left") for item in call.items}
    joined = {item["name"] for call in history.of(calls, "joins") for item in call.items}
    for name in sorted(joined - left):
        await remove(store, channel, name)


async def remove(store: Backend, channel: str, name: str, step: int = STEP) -> None:
    try:
        while not (await store.channels.remove_consumer(channel, name, step)).done:
            await asyncio.sleep(0)
    except NotFound:
        return


async def late_subscriber(spec: dict[str, Any]) -> None:
    """Subscribe at the beginning of a log, see the jobs made, leave, and begin again.

    Specification: url, history, channel, prefix (of its names), until (a file that ends it), and optionally
    events (how many it publishes first), pause (seconds until the next one) and step (how much of it is
    removed at once). It begins with removing consumers that were left half removed.
    """
    store, notes = connect(spec)
    async with Bus([store]) as bus:
        channel = spec["channel"]
        if events := spec.get("events", EVENTS):
            await bus.publish_many(channel, [Event({"n": number}) for number in range(events)])
        await remove_all(store, channel, Path(spec["history"]))
        for number in count():
            if Path(spec["until"]).exists():
                return
            name = f"{spec['prefix']}-{number}"
            notes.happened("joins", {"name": name})
            await bus.subscribe(channel, name, start="earliest")
            for _ in range(_STEPS):  # so that its jobs are made, here or by others
                await bus.partitions.all[0].step()
            await store.leases.claim(channel, name, EVENTS, "late-subscriber")
            await remove(store, channel, name, spec.get("step", STEP))
            notes.happened("left", {"name": name})
            await asyncio.sleep(spec.get("pause", _UNTIL_NEXT))


PATCH = b'{"patched": true}'


async def move_letters(store: Backend, verb: str, channel: str, consumer: str, chunk: int) -> int | None:
    """Move one chunk. Returns how many, or None once there is nothing left."""
    if verb == "remove":
        removal = await store.channels.remove_consumer(channel, consumer, chunk)
        return None if removal.done else removal.jobs + removal.dead + removal.history
    page = await store.deadletters.page(DeadFilter(channel, consumer), None, chunk)
    ids = [letter.record.id for letter in page.letters]
    if not ids:
        return None
    if verb == "revive":
        return sum(await store.deadletters.revive(channel, consumer, ids, PATCH))
    return sum(await store.deadletters.purge(channel, consumer, ids))


async def deadletters(spec: dict[str, Any]) -> None:
    """Move dead letters in chunks until none is left, or remove their consumer step by step.

    Specification: url, history, channel, consumer, verb (revive, purge or remove), chunk. What it revives
    gets other data.
    """
    notes, store = History(Path(spec["history"])), backend(spec["url"])
    await store.open()
    of = (spec["verb"], spec["channel"], spec["consumer"], spec["chunk"])
    while (moved := await move_letters(store, *of)) is not None:
        notes.happened("moved", {"count": moved})
    await store.close()
