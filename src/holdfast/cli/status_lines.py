"""Status lines: one for each service of a supervisor, in its place at a terminal, as changes elsewhere."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from holdfast.cli.output import safe, write_json, write_line

if TYPE_CHECKING:  # the web framework takes longer to import than most commands to run
    from holdfast.server.supervisor import Supervisor


class StatusLine(NamedTuple):
    """One part, as it is shown."""

    part: str
    phase: str
    restarts: int
    status: str


Show = Callable[[Sequence[StatusLine]], None]
_EVERY = 0.2
_STYLES = {"starting": "dim", "running": "green", "restarting": "bold red", "stopped": "dim"}


def at_terminal(as_json: bool) -> bool:
    """Whether a person looks at the lines."""
    return sys.stdout.isatty() and not as_json


@contextmanager
def status_lines(logs: Path | None, as_json: bool) -> Iterator[Show]:
    """At a terminal, lines that stay in their places; otherwise a new line for each change."""
    if not at_terminal(as_json):
        yield _Changes(as_json).show
        return
    console = Console(highlight=False, markup=False, emoji=False)
    with Live(console=console, auto_refresh=False) as live:
        yield lambda lines: live.update(Group(_heading(lines, logs), _table(lines)), refresh=True)


async def show_changes(supervisor: Supervisor, show: Show) -> None:
    """Show every change until cancelled, and how it ended."""
    shown: list[StatusLine] = []
    try:
        while True:
            found = _lines(supervisor)
            if found != shown:
                show(found)
            shown = found
            await asyncio.sleep(_EVERY)
    finally:
        show(_lines(supervisor))


def _lines(supervisor: Supervisor) -> list[StatusLine]:
    return [
        StatusLine(each.service.name, each.phase, each.restarts, " ".join(each.status().split()))
        for each in supervisor.services
    ]


class _Changes:
    """Writes what has changed since it was shown."""

    def __init__(self, as_json: bool) -> None:
        self._as_json = as_json
        self._shown: dict[str, StatusLine] = {}

    def show(self, lines: Sequence[StatusLine]) -> None:
        for line in lines:
            if self._shown.get(line.part) == line:
                continue
            self._shown[line.part] = line
            if self._as_json:
                write_json(line)
            else:
                write_line(f"{line.part:<12} {line.phase:<10} {line.status}")
        sys.stdout.flush()


def _heading(lines: Sequence[StatusLine], logs: Path | None) -> Text:
    """Where to look; what happens next is up to the reader."""
    heading = Text()
    for line in lines:
        if line.part == "http" and line.phase == "running":
            heading.append("control room  ", "dim").append(f"{line.status}\n", "bold")
    if logs is not None:
        heading.append(f"logs          {logs}\n", "dim")
    return heading.append("Ctrl-C stops everything\n", "dim")


def _table(lines: Sequence[StatusLine]) -> Table:
    table = Table(box=None, pad_edge=False, show_header=False)
    for line in lines:
        again = f" ({line.restarts}×)" if line.restarts else ""
        phase = Text(line.phase + again, style=_STYLES[line.phase])
        table.add_row(Text(line.part, style="bold"), phase, Text(safe(line.status)))
    return table
