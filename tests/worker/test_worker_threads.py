"""Threads: a plain handler that does not return takes its own place, and nobody else's budget."""

from __future__ import annotations

import subprocess
import sys
import threading

from shift import ended, holds, shift

import holdfast
from holdfast.contracts import Backend
from holdfast.model.states import State
from kit import CHANNEL, CONSUMER, publish, record, subscribe, until

STUCK: dict[str, object] = {"start": "earliest", "timeout": "50ms", "max_attempts": 1}


async def test_no_attempt_begins_and_runs_out_of_time_before_there_is_a_thread_for_it(
    bus: holdfast.Bus, backend: Backend
) -> None:
    app, go, begun = holdfast.App(), threading.Event(), list[str]()

    @app.handler(CHANNEL, CONSUMER, concurrency=1, prefetch=4, **STUCK)
    def work(event: holdfast.Event) -> None:
        begun.append(event.id)
        if event.id == "slow":
            go.wait(60)

    await subscribe(backend)
    await publish(backend, "slow", "a", "b", "c")
    async with shift(app, bus):
        assert (await ended(backend, "slow")).reason == "max_attempts"

        async def given_back() -> bool:
            found = [await record(backend, name) for name in "abc"]
            return {(each.state, each.attempts) for each in found} == {(State.READY, 0)}

        await until(given_back, 30)  # others may have them: nobody here can begin them
        assert begun == ["slow"]
        go.set()
        await holds(lambda: sorted(begun) == ["a", "b", "c", "slow"])


async def test_a_handler_that_goes_on_after_its_timeout_does_not_hold_up_a_drain(
    bus: holdfast.Bus, backend: Backend
) -> None:
    app, go, begun = holdfast.App(), threading.Event(), list[str]()

    @app.handler(CHANNEL, CONSUMER, concurrency=2, **STUCK)
    def work(event: holdfast.Event) -> None:
        begun.append(event.id)
        go.wait(120)

    await publish(backend, "a")
    try:
        async with shift(app, bus, grace="90s"):  # far more than the shift itself is patient
            await ended(backend, "a")
    finally:
        go.set()
    await holds(lambda: begun == ["a"])
    assert (await record(backend, "a")).state is State.DEAD


PROGRAM = """
import asyncio, sys, threading
import holdfast

app = holdfast.App()
stop = asyncio.Event()

@app.handler("orders", "billing", start="earliest")
def block(event):
    loop.call_soon_threadsafe(stop.set)
    threading.Event().wait()

async def main():
    global loop
    loop = asyncio.get_running_loop()
    async with holdfast.connect(sys.argv[1]) as bus:
        await bus.publish("orders", {}, id="a")
        await app.run(bus, stop=stop, grace="100ms")

asyncio.run(main())
"""


async def test_a_process_ends_although_a_handler_blocks_in_its_thread(
    database: str, backend: Backend
) -> None:
    ran = subprocess.run([sys.executable, "-c", PROGRAM, database], timeout=60, check=False)  # noqa: ASYNC221
    assert ran.returncode == 0
    kept = await record(backend, "a")
    assert (kept.state, kept.attempts) == (State.READY, 0)
