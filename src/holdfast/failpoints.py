"""Failpoints: named places where a test can make the process die, stop or fail.

    failpoints.hit("worker.after_claim")                       # in the code: a dictionary look-up when off
    failpoints.activate("worker.after_claim", "kill")          # in a test
    HOLDFAST_FAILPOINTS="worker.after_claim=kill;publish.after_commit=raise:2"  # for a process it starts

`kill` is SIGKILL to oneself, `stop` is SIGSTOP to oneself (somebody sends SIGCONT), `raise` raises
`FailpointError`, and anything else that a test needs is a callable. A number skips that many hits first.
"""

import os
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final, Literal, TypeAlias, cast

Action: TypeAlias = Literal["kill", "stop", "raise"] | Callable[[], object]

VARIABLE: Final = "HOLDFAST_FAILPOINTS"

KNOWN: Final[dict[str, str]] = {
    "publish.before_commit": "bulk: events written, transaction open; otherwise: nothing is sent yet",
    "publish.after_commit": "the events are durable, the publisher does not know it yet",
    "spool.after_append": "events are durable in the spool, their publisher does not know it yet",
    "spool.after_publish": "events of the spool are in their channel, and still in the spool",
    "spool.after_advance": "events of the spool are in their channel only",
    "worker.after_claim": "the jobs are leased, no handler has seen them",
    "worker.mid_handler": "a handler is at work",
    "worker.after_effect": "the handler's effect has happened, the job is not completed",
    "worker.after_ack": "a batch of jobs was finalized, the worker does not know it yet",
    "transaction.before_completion": "a handler's transaction has its effect, the job is not completed",
    "transaction.before_commit": "a handler's transaction completes the job, and is not committed",
    "transaction.after_commit": "a handler's transaction is committed, the worker does not know it yet",
    "lifecycle.after_read": "what is due has been read, nothing has been applied",
    "lifecycle.mid_apply": "some of the decisions have been applied",
    "dead.after_revive": "dead letters were revived, the caller does not know it yet",
    "dead.after_purge": "dead letters are purged, the caller does not know it yet",
    "dead.mid_move": "on NATS: one batch of dead letters was revived or purged, the next was not sent",
    "dead.mid_recount": "on Redis: some of a consumer's dead letters are counted anew",
    "remove.after_mark": "a consumer is taken out, everything of it is still stored",
    "remove.after_step": "some of what a removed consumer had is gone",
    "remove.before_end": "on NATS: nothing of a removed consumer is left, but its name is not free yet",
    "schedules.after_publish": "ticks of schedules are published, the schedules do not say so",
    "sweeper.after_lock": "the sweeper holds its lock, nothing has been looked at",
    "sweeper.after_stuck": "stuck work was moved and told, nothing has been trimmed",
    "sweeper.after_trim": "a step of trimming was done",
    "sweeper.between_channels": "one channel is within its limits, the next was not looked at",
    "sweeper.before_report": "the sweep is done, nobody was told",
    "trim.after_record": "on NATS: how far a trim goes is written down, nothing is removed",
    "trim.mid_purge": "on NATS: the trimmed events are gone, the parts of large ones are not",
    "tasks.after_submit": "a task is queued and has no record",
    "tasks.after_claim": "tasks are leased, their records do not say so",
    "tasks.after_result": "a task's result is kept, its job still leased",
    "tasks.after_finalize": "a task's job has moved, its record does not say so",
    "tasks.after_terminal": "a task's end was told, its record does not say so",
    "tasks.before_cursor": "tasks that were given up are settled; they would be settled again",
    "source.before_plan": "Spark asks for the next batch; the one before is in its checkpoint",
    "source.mid_read": "a Spark task has handed over some of its rows",
    "archive.before_put": "an object of the archive is ready, nothing of it is stored",
    "archive.after_put": "an object of the archive is stored, and in no manifest",
    "archive.after_manifest": "a batch is in the archive; not announced, and the cursor is where it was",
    "archive.after_event": "a batch is in the archive and announced; the cursor is where it was",
    "archive.after_cursor": "a batch is archived; Spark's checkpoint does not know it yet",
    "subscribe.mid_backfill": "some of what waits for a consumer has become jobs, the rest has not",
    "wal.after_stage": "a segment is durable, no batch names it",
    "wal.before_plan": "all segments of a batch are durable, nothing says that they belong together",
    "wal.before_pending": "all segments of a batch and its plan are durable, the batch is not",
    "wal.after_pending": "the batch is durable, no cursor knows it",
    "wal.mid_cursors": "the batch is durable, the cursors of some of its channels know it",
    "wal.after_cursor": "the cursors have moved, the batch is not loaded",
    "wal.mid_clean": "a confirmed batch is half removed",
    "wal.before_lost": "what a lost batch held is abandoned, the batch still counts as damaged",
    "driver.after_offsets": "Spark has planned a batch and written that down, nothing of it was read",
    "driver.after_batch": "a batch is durable and with the loader; Spark's checkpoint does not know it yet",
    "delta.after_stage": "a data file of a Delta table is durable, no commit adds it",
    "compact.after_stage": "objects of an archive are merged into a large one, no manifest lists it",
    "compact.before_commit": "small files of a table or archive are merged, and the old ones count",
    "compact.after_commit": "small files of a table or archive are replaced by a large one, and still there",
    "compact.mid_clean": "some files that nobody needs any more are removed",
    "compact.before_index": "pieces of a Delta table's index are merged, its state does not say so",
    "loader.after_lease": "a batch is leased, nothing has been done with it",
    "loader.before_commit": "rows and ledger entry are written, the transaction is open",
    "loader.after_commit": "the warehouse has the batch, the WAL does not know it",
    "loader.after_confirm": "the batch is confirmed, nobody has been told",
    "loader.after_failed": "a failed record is durable in the WAL, the warehouse does not know it",
    "loader.after_mirror": "`failed_events` knows of failed records, the WAL does not say so",
    "operation.after_lock": "an operation is running, nothing of it was done in this run",
    "operation.after_intent": "a chunk of an operation is written down, nothing of it was done",
    "operation.after_act": "a chunk of an operation is done, its progress does not say so",
    "operation.before_end": "an operation is done and the audit says so, its record does not",
    "rebuild.after_stage": "objects of the archive are staged, no batch names the segments",
    "repair.before_commit": "wrong rows of a warehouse are about to be replaced",
}

_active: dict[str, Callable[[], object]] = {}


class FailpointError(RuntimeError):
    """What an active failpoint raises."""


def hit(name: str) -> None:
    """Do what a test has asked for here; usually nothing."""
    action = _active.get(name)
    if action is not None:
        action()


def activate(name: str, action: Action, *, after: int = 0) -> None:
    """From the hit after the first `after` ones on, do `action` at `name`."""
    if name not in KNOWN:
        raise ValueError(f"unknown failpoint {name!r}: the known ones are {', '.join(KNOWN)}")
    if after < 0:
        raise ValueError(f"after={after} for failpoint {name!r}: it must not be negative")
    _active[name] = _skipping(after, _resolve(name, action))


def watch(note: Callable[[str], object]) -> None:
    """Call `note` with the name of every hit from now on; what is active happens after that."""
    for name in KNOWN:
        _active[name] = _noted(name, note, _active.get(name))


def deactivate(name: str) -> None:
    """Undo `activate`; nothing happens when the failpoint is off."""
    _active.pop(name, None)


def clear() -> None:
    """Turn all failpoints off."""
    _active.clear()


@contextmanager
def active(name: str, action: Action, *, after: int = 0) -> Iterator[None]:
    """Activate the failpoint for the length of a block."""
    activate(name, action, after=after)
    try:
        yield
    finally:
        deactivate(name)


def _noted(
    name: str, note: Callable[[str], object], action: Callable[[], object] | None
) -> Callable[[], object]:
    def act() -> None:
        note(name)
        if action is not None:
            action()

    return act


def _resolve(name: str, action: Action) -> Callable[[], object]:
    def fail() -> None:
        raise FailpointError(f"failpoint {name}")

    match action:
        case "kill":
            return lambda: os.kill(os.getpid(), signal.SIGKILL)
        case "stop":
            return lambda: os.kill(os.getpid(), signal.SIGSTOP)
        case "raise":
            return fail
        case _ if callable(action):
            return action
    raise ValueError(f"unknown action {action!r} for failpoint {name!r}: kill, stop, raise or a callable")


def _skipping(count: int, action: Callable[[], object]) -> Callable[[], object]:
    remaining = count

    def act() -> None:
        nonlocal remaining
        remaining -= 1
        if remaining < 0:
            action()

    return act if count else action


def _parse(text: str) -> Iterator[tuple[str, str, int]]:
    """`name=action` or `name=action:skip`, separated by semicolons."""
    for item in filter(None, map(str.strip, text.split(";"))):
        name, _, rest = item.partition("=")
        action, colon, skip = rest.partition(":")
        if action not in ("kill", "stop", "raise") or (colon and not (skip.isdecimal() and len(skip) < 10)):
            raise ValueError(f"{VARIABLE}: {item!r} is not of the form NAME=kill|stop|raise[:HITS-TO-SKIP]")
        yield name.strip(), action, int(skip or 0)


def activate_from(environment: Mapping[str, str]) -> None:
    """Activate what the variable of an environment says; for this process's own that has happened."""
    for name, action, skip in _parse(environment.get(VARIABLE, "")):
        activate(name, cast(Action, action), after=skip)


activate_from(os.environ)
