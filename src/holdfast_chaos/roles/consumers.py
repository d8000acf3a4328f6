"""Consumers: processes that work on jobs, with an app or without one, and one that follows the log."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from importlib import import_module
from itertools import count
from pathlib import Path
from typing import Any

import holdfast
from holdfast.bus.app import App
from holdfast.bus.client import Bus
from holdfast.contracts import Backend
from holdfast.model.errors import InvalidInput, LeaseLost
from holdfast.model.job import Job
from holdfast.model.log import Page
from holdfast.wiring import backend
from holdfast_chaos.history import History
from holdfast_chaos.recorder import connect
from holdfast_chaos.roles import TERMS
from holdfast_chaos.roles.upkeep import beating

PLAIN, ORDERED = "billing", "shipping"
CONSUMERS = ((PLAIN, False), (ORDERED, True))
"""Each with whether it takes events in order."""


def own_app(spec: dict[str, Any], notes: History) -> App:
    """The consumers of the rig."""
    app, chance = holdfast.App(), random.Random()
    policies = spec.get("policies") or {
        name: spec["policy"] | {"ordered": ordered} for name, ordered in CONSUMERS
    }
    for name, policy in policies.items():

        def work_for(consumer: str) -> Any:
            async def work(event: holdfast.Event) -> None:
                about = {"id": event.id, "consumer": consumer}
                notes.happened("seen", about)
                match event.json()["do"]:
                    case "slow":
                        await asyncio.sleep(chance.uniform(0, 0.3))
                    case "flaky" if chance.random() < 0.5:
                        raise RuntimeError("not this time")
                    case "fail":
                        raise RuntimeError("never")
                    case "terminal":
                        raise holdfast.Terminal("no use")
                notes.happened("effect", about)

            return work

        app.handler(spec["channel"], name, start="earliest", **policy)(work_for(name))
    return app


def users_app(name: str) -> App:
    """The app that a user names as `module:name`, on terms under which a kill is soon over."""
    sys.path.insert(0, "")
    module, _, attribute = name.partition(":")
    try:
        found = getattr(import_module(module), attribute or "app", None)
    except ModuleNotFoundError as error:
        raise InvalidInput(f"app {name!r}: {error}; name one that can be imported as MODULE:APP") from None
    if not isinstance(found, App):
        raise InvalidInput(f"app {name!r} is no holdfast.App; name one as MODULE:APP")
    for handler in found.handlers:
        handler.policy.update(TERMS)
    return found


async def consumer(spec: dict[str, Any]) -> None:
    """Work: an app whose handlers do what the event says, or the app of a user.

    Specification: url, history, channel, policy; or app (`module:name`) instead of channel and policy, or
    policies (by consumer) instead of policy; and optionally idle and grace. Of the two consumers of the rig
    one takes events in the order of their keys.
    """
    store, notes = connect(spec)
    app = users_app(spec["app"]) if "app" in spec else own_app(spec, notes)
    async with Bus([store]) as bus, beating(notes):
        await app.serve(bus, idle=spec.get("idle", "200ms"), grace=spec.get("grace", "3s"))


def _block_until(file: Path) -> None:
    while not file.exists():
        time.sleep(0.01)


async def worker(spec: dict[str, Any]) -> None:
    """Work: an app whose handler notes what it sees and what it has done.

    Specification: url, history, channel, consumer, options (of the handler). Data that says `poison` kills
    the process; data that says `hold` makes the handler block the event loop until that file exists.
    """
    store, notes = connect(spec)
    app = holdfast.App()

    @app.handler(spec["channel"], spec["consumer"], start="earliest", **spec["options"])
    async def work(event: holdfast.Event) -> None:
        notes.happened("seen", {"id": event.id})
        data = event.json()
        if "poison" in data:
            os.kill(os.getpid(), signal.SIGKILL)
        if "hold" in data:
            _block_until(Path(data["hold"]))
        notes.happened("effect", {"id": event.id})

    async with Bus([store]) as bus:
        await app.serve(bus, idle="200ms", grace="5s")


_IDLE, _LIMITS = 0.4, (1, 4, 20)
_SINGLY = 0.3
_ENDS = ("complete",) * 6 + ("fail", "terminal", "release", "snooze", "extend", "slow")


async def poller(spec: dict[str, Any]) -> None:
    """Poll for every consumer, without an app: complete, fail, snooze and release.

    Specification: url, history, consumers (channels and names), drained (a file that ends it).
    """
    store, notes = connect(spec)
    async with Bus([store]) as bus, beating(notes):
        await asyncio.gather(*(_poll(bus, Path(spec["drained"]), *each) for each in spec["consumers"]))


async def _poll(bus: Bus, end: Path, channel: str, consumer: str) -> None:
    while not end.exists():
        jobs = await bus.poll(channel, consumer, limit=random.choice(_LIMITS))
        if len(jobs) > 1 and random.random() > _SINGLY:
            with suppress(LeaseLost):  # an operator took some of them away
                await bus.finalize_many(jobs, success=True)
        else:
            for job in jobs:
                with suppress(LeaseLost):
                    await _finish(bus, job)
        await asyncio.sleep(0 if jobs else _IDLE)


async def _finish(bus: Bus, job: Job) -> None:
    match random.choice(_ENDS):
        case "fail":
            await bus.finalize(job, success=False, error="not this time")
        case "terminal":
            await bus.finalize(job, success=False, error="no use", terminal=True)
        case "release":
            await bus.release(job)
        case "snooze":
            await bus.snooze(job, "50ms")
        case "extend":
            await bus.extend(job, "1m")
            await bus.finalize(job, success=True)
        case "slow":
            await asyncio.sleep(random.uniform(0, 0.2))
            await bus.finalize(job, success=True)
        case _:
            await bus.finalize(job, success=True)


async def follow(
    store: Backend,
    notes: History,
    channel: str,
    consumer: str,
    size: int,
    pages: int | None = None,
    is_over: Callable[[], bool] = lambda: False,
) -> None:
    """Be a plain stream consumer: note what was read, durably, then move the cursor, as an archiver does.

    Ends after so many pages of a size; without a number, once it is over and nothing is left to read.
    """
    numbers = count(1)
    async for at, page in _pages_of(store, channel, consumer, size, is_over):
        notes.happened(
            "archived", *({"channel": channel, "consumer": consumer, "id": name} for name in page.ids)
        )
        notes.sync()
        if not await store.cursors.move(channel, consumer, at, page.positions[-1]):
            raise RuntimeError(f"somebody else moved the cursor of {consumer} from {at}")
        if next(numbers) == pages:
            return


async def _pages_of(
    store: Backend, channel: str, consumer: str, size: int, is_over: Callable[[], bool]
) -> AsyncIterator[tuple[str | None, Page]]:
    """Every page, with the position before it."""
    at = (await store.cursors.attach(channel, consumer)).position
    while True:
        over, last = is_over(), (await store.log.extent(channel)).last
        if last is not None and (at is None or last > at):
            async for page in store.log.pages(channel, at, last, size):
                yield at, page
                at = page.positions[-1]
        elif over:
            return
        await asyncio.sleep(0.02)


async def follower(spec: dict[str, Any]) -> None:
    """Follow a channel until a file exists and nothing is left to read.

    Specification: url, history, channel, consumer, size (of a page), until (the file).
    """
    notes, store = History(Path(spec["history"])), backend(spec["url"])
    await store.open()
    end = Path(spec["until"])
    await follow(store, notes, spec["channel"], spec["consumer"], spec["size"], is_over=end.exists)
    await store.close()
