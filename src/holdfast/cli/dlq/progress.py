"""The progress of an operation: the question before it, one line while it runs, and how it ended."""

from __future__ import annotations

import signal
import sys
import threading
import time
from dataclasses import replace
from typing import NoReturn

import typer

from holdfast.bus.shutdown import stop_on_signal
from holdfast.cli.dlq.read import write_deadletters
from holdfast.cli.options import ConfigFile, Urls
from holdfast.cli.output import say, write_json, write_line
from holdfast.cli.session import with_deadletters
from holdfast.deadletters import DeadLetters, Operation, Operations, Preview, Request, Runner, parse_item
from holdfast.deadletters.operation import ON_CONSUMERS
from holdfast.model.errors import HoldfastError

_EVERY = 5.0
INTERRUPTED = 130
_WORDS = {
    "requeue": "made ready again",
    "redrive": "made ready again",
    "patch": "patched and made ready again",
    "purge": "removed for good",
    "delete": "removed for good",
    "remove_consumer": "removed for good with their consumer",
    "empty_consumer": "cancelled",
}


def run_operation(
    request: Request,
    by: str,
    urls: Urls,
    config: ConfigFile,
    wal: str | None,
    *,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Preview an operation, ask, run it, and end the program with its outcome."""

    async def work(letters: DeadLetters) -> Operation | None:
        operations = Operations(letters)
        preview = await operations.preview(request, exact=True)
        if dry_run:
            _print_preview(request, preview, as_json)
            return None
        asked = request
        if not yes:
            for line in _changes(preview):
                say(line)
            _confirm(f"{_amount(request, preview)} will be {_WORDS[request.kind]}. Go on?")
            asked = _only_what_was_shown(request, preview)
        return await follow(letters, (await operations.ask(asked, by, preview=preview)).id, as_json)

    operation = with_deadletters(urls, config, wal, _kinds(request), work)
    if operation is not None:
        conclude(operation, as_json)


def _kinds(request: Request) -> set[str]:
    named = () if request.filter is None else request.filter.kinds
    return {parse_item(each).kind for each in request.items} | set(named)


def _confirm(question: str) -> None:
    """Ask. Ctrl-C means no, at once: an event loop would wait for the answer first."""
    if threading.current_thread() is not threading.main_thread():
        typer.confirm(question, abort=True, err=True)
        return
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        typer.confirm(question, abort=True, err=True)
    finally:
        signal.signal(signal.SIGINT, before)


def _only_what_was_shown(request: Request, preview: Preview) -> Request:
    """Where one change was shown, only that one is made."""
    if len(request.items) != 1 or not preview.changes:
        return request
    return replace(request, options=replace(request.options, digest=preview.changes[0].digest))


async def follow(letters: DeadLetters, operation_id: str, as_json: bool) -> Operation:
    """Run an operation to its end, and return how it ended. Ctrl-C cancels it between two chunks."""
    line = _ProgressLine(quiet=as_json)
    try:
        with stop_on_signal() as stop:
            runner = Runner(Operations(letters), letters.bus.name)
            return await runner.follow(operation_id, stop=stop, on_progress=line.tell)
    except HoldfastError:
        say(f"the operation is not finished; go on with: holdfast dlq resume {operation_id}")
        raise
    finally:
        line.close()


def conclude(operation: Operation, as_json: bool) -> None:
    """Print how an operation ended, and end the program with its exit code."""
    if as_json:
        write_json(operation)
    else:
        say(f"{operation.kind} {operation.id} is {operation.state}: {operation.outcome}")
        for problem in operation.problems:
            say(f"  {problem}")
    if operation.state == "done":
        _end(0 if operation.progress.done or not operation.progress.skipped else 1)
    say(f"to go on: holdfast dlq resume {operation.id}")
    _end(INTERRUPTED if operation.state == "cancelled" else 1)


def _end(code: int) -> NoReturn:
    raise typer.Exit(code)


def _amount(request: Request, preview: Preview) -> str:
    what = "job" if request.kind in ON_CONSUMERS else "dead letter"
    amount = f"{preview.count:,} {what}{'' if preview.count == 1 else 's'}"
    return amount if preview.exact else f"at least {amount}"


def _print_preview(request: Request, preview: Preview, as_json: bool) -> None:
    if as_json:
        write_json({"dry_run": True, "kind": request.kind, "preview": preview})
        return
    for line in _changes(preview):
        write_line(line)
    write_line(f"{_amount(request, preview)} would be {_WORDS[request.kind]}; nothing was changed")
    if preview.jobs:
        write_line(", ".join(f"{count:,} {state}" for state, count in preview.jobs.items()))
    if preview.sample and not preview.changes:
        write_deadletters(preview.sample)


def _changes(preview: Preview) -> list[str]:
    return [f"{change.item}\n{change.diff or '  no difference'}" for change in preview.changes]


class _ProgressLine:
    """The progress: one line that is written over at a terminal, now and then a line elsewhere."""

    def __init__(self, quiet: bool) -> None:
        self._quiet, self._terminal = quiet, sys.stderr.isatty()
        self._said = time.monotonic()
        self._open = False

    def tell(self, operation: Operation) -> None:
        """Say how far it is."""
        progress = operation.progress
        if self._quiet or not progress.looked_at:
            return
        of = "" if progress.expected is None else f" of {progress.expected:,}"
        text = f"{progress.looked_at:,}{of} looked at, {progress.done:,} done, {progress.skipped:,} skipped"
        if self._terminal:
            typer.echo(f"\r{text}", nl=False, err=True)
            self._open = True
        elif time.monotonic() - self._said >= _EVERY:
            say(text)
            self._said = time.monotonic()

    def close(self) -> None:
        """What follows begins on a line of its own."""
        if self._open:
            typer.echo("", err=True)
