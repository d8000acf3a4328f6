"""The bus without await: whoever may not use it is told so, and never waits for ever."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import psycopg
import pytest

import holdfast
from kit import CHANNEL, CONSUMER

PATIENCE = 30


def in_thread(call: Callable[[], object]) -> Future[object]:
    """Make a call elsewhere, so that one that hangs does not take the test with it."""
    made: Future[object] = Future()

    def make() -> None:
        try:
            made.set_result(call())
        except BaseException as error:
            made.set_exception(error)

    threading.Thread(target=make, daemon=True).start()
    return made


def test_threads_share_it(database: str) -> None:
    with holdfast.connect_sync(database) as bus, ThreadPoolExecutor(8) as pool:
        receipts = list(pool.map(lambda n: bus.publish(CHANNEL, {"n": n}), range(40)))
        assert len({receipt.position for receipt in receipts}) == 40
        assert len(bus.read(CHANNEL)) == 40


def test_what_runs_is_cancelled_as_on_the_async_one(database: str) -> None:
    with holdfast.connect_sync(database) as bus:
        bus.subscribe(CHANNEL, CONSUMER)
        bus.publish(CHANNEL, {}, id="a")
        [job] = bus.poll(CHANNEL, CONSUMER)
        assert bus.cancel(CHANNEL, "a") == 0
        assert bus.cancel(CHANNEL, "a", running=True, by="ann", reason="no more") == 1
        with pytest.raises(holdfast.LeaseLost):
            bus.finalize(job, success=True)
        [kept] = bus.find_jobs(CHANNEL, "a")
        assert (kept.state, kept.cancelled_by, kept.reason) == ("cancelled", "ann", "no more")


async def test_it_works_beside_a_running_loop(database: str) -> None:
    with holdfast.connect_sync(database) as bus:
        assert bus.publish(CHANNEL, {}).position


def test_it_is_not_used_before_it_is_opened(database: str) -> None:
    bus = holdfast.connect_sync(database)
    with pytest.raises(holdfast.Unavailable, match="not open; use 'with connect_sync"):
        in_thread(lambda: bus.publish(CHANNEL, {})).result(PATIENCE)


def test_it_is_not_used_after_it_is_closed_and_can_be_opened_again(database: str) -> None:
    bus = holdfast.connect_sync(database)
    with bus, pytest.raises(holdfast.InvalidInput, match="open already"):
        bus.__enter__()
    with pytest.raises(holdfast.Unavailable, match="not open"):
        in_thread(lambda: bus.publish(CHANNEL, {})).result(PATIENCE)
    with bus:
        assert bus.publish(CHANNEL, {}).position


def test_a_call_of_another_thread_ends_when_it_is_closed(database: str) -> None:
    with psycopg.connect(database) as own:
        with holdfast.connect_sync(database) as bus:
            bus.subscribe(CHANNEL, CONSUMER)
            own.execute("LOCK TABLE holdfast.channels, holdfast.events IN ACCESS EXCLUSIVE MODE")
            published = in_thread(lambda: bus.publish(CHANNEL, {}))
            deadline = time.monotonic() + PATIENCE
            while not own.execute("SELECT FROM pg_locks WHERE NOT granted").fetchall():
                assert time.monotonic() < deadline, "the call never waited for the lock"
        with pytest.raises(holdfast.Unavailable, match="closed during the call"):
            published.result(PATIENCE)


FORK = """
import os, sys
import holdfast

with holdfast.connect_sync(sys.argv[1]) as bus:
    bus.publish("orders", {})
    child = os.fork()
    if not child:
        try:
            bus.publish("orders", {})
        except holdfast.Unavailable as error:
            print(error, flush=True)
    else:
        os.waitpid(child, 0)
        bus.publish("orders", {})
print("parent" if child else "child", flush=True)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_child_is_told_to_connect_anew_and_leaves_its_parents_connections_alone(database: str) -> None:
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORK, database],
        timeout=60,
        check=True,
        capture_output=True,
        text=True,
    )
    assert ran.stdout.splitlines() == [
        "this bus belongs to the parent process; connect one after the fork",
        "child",
        "parent",
    ]
