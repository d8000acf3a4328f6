"""`holdfast up`: everything in one process, one status line per part."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, NamedTuple, NoReturn

import typer
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from holdfast.cli import logs
from holdfast.cli.options import ConfigFile, Json, Urls, examples, flat
from holdfast.cli.output import safe, say, write_json, write_line
from holdfast.wiring import connect

if TYPE_CHECKING:  # the web framework takes longer to import than most commands to run
    from holdfast.config.config import Config
    from holdfast.server.supervisor import Supervisor
    from holdfast.server.system import Choice

Host = Annotated[str | None, typer.Option(help="Address of the HTTP server.  [default: 127.0.0.1]")]
Port = Annotated[int | None, typer.Option(help="Its port; 0 takes a free one.  [default: 8420]")]
NoHttp = Annotated[bool, typer.Option("--no-http", help="Serve no HTTP.")]
NoSweeper = Annotated[bool, typer.Option("--no-sweeper", help="Do not sweep.")]
NoArchiver = Annotated[bool, typer.Option("--no-archiver", help="Do not archive.")]
NoIngest = Annotated[bool, typer.Option("--no-ingest", help="Do not fill the warehouse.")]


class Line(NamedTuple):
    """One part, as it is shown."""

    part: str
    phase: str
    restarts: int
    status: str


Show = Callable[[Sequence[Line]], None]
_EVERY = 0.2
_STYLES = {"starting": "dim", "running": "green", "restarting": "bold red", "stopped": "dim"}


def up(
    host: Host = None,
    port: Port = None,
    no_http: NoHttp = False,
    no_sweeper: NoSweeper = False,
    no_archiver: NoArchiver = False,
    no_ingest: NoIngest = False,
    urls: Urls = None,
    config: ConfigFile = None,
    as_json: Json = False,
) -> None:
    """Run the whole system with one command.

    That is the lifecycle and the sweeper of every store, health and metrics over HTTP, and, where the
    configuration has streams for them, the archiver and the ingest, each a Spark driver of its own. A part
    that dies is restarted. SIGTERM or Ctrl-C drains and ends with 0, or with 1 if a part did not stop as it
    should; a second one aborts. Status lines go to stdout, logs to stderr.
    """
    from holdfast.config.load import load
    from holdfast.server.system import Choice

    flags = {"url": flat(urls), "server.host": host, "server.port": port}
    effective = load(config, flags=flags).config
    choice = Choice(not no_http, not no_sweeper, not no_archiver, not no_ingest, config)
    asyncio.run(_run(effective, choice, as_json))


async def _run(config: Config, choice: Choice, as_json: bool) -> None:
    from holdfast.server.system import assemble

    async with connect(config=config) as bus:
        try:
            unclean = await _supervise(assemble(bus, config, choice), as_json)
        except asyncio.CancelledError:
            _abort("aborted")
        if unclean:
            _abort(f"did not stop as it should: {', '.join(unclean)}")


async def _supervise(supervisor: Supervisor, as_json: bool) -> list[str]:
    from holdfast.bus.signals import stop_on_signal

    with stop_on_signal() as stop, _screen(as_json) as show:
        follower = asyncio.create_task(_follow(supervisor, show))
        try:
            return await supervisor.run(stop)
        finally:
            follower.cancel()
            await asyncio.gather(follower, return_exceptions=True)
            show(_lines(supervisor))


def _abort(message: str) -> NoReturn:
    """End now: what still runs must not hold the process."""
    say(message)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1)


async def _follow(supervisor: Supervisor, show: Show) -> None:
    shown: list[Line] = []
    while True:
        lines = _lines(supervisor)
        if lines != shown:
            show(lines)
        shown = lines
        await asyncio.sleep(_EVERY)


def _lines(supervisor: Supervisor) -> list[Line]:
    return [
        Line(each.part.name, each.phase, each.restarts, " ".join(each.status().split()))
        for each in supervisor.kept
    ]


@contextmanager
def _screen(as_json: bool) -> Iterator[Show]:
    """At a terminal, lines that stay in their places; otherwise a new line for each change."""
    if as_json or not sys.stdout.isatty():
        logs.configure(as_json=as_json)
        yield _Changes(as_json).show
        return
    console = Console(highlight=False, markup=False, emoji=False)
    with Live(console=console, auto_refresh=False) as live:
        logs.configure(as_json=False)  # now: the display makes room for what it prints
        yield lambda lines: live.update(_table(lines), refresh=True)


class _Changes:
    """Writes what has changed since it was shown."""

    def __init__(self, as_json: bool) -> None:
        self._as_json = as_json
        self._shown: dict[str, Line] = {}

    def show(self, lines: Sequence[Line]) -> None:
        for line in lines:
            if self._shown.get(line.part) == line:
                continue
            self._shown[line.part] = line
            if self._as_json:
                write_json(line)
            else:
                write_line(f"{line.part:<12} {line.phase:<10} {line.status}")
        sys.stdout.flush()


def _table(lines: Sequence[Line]) -> Table:
    table = Table(box=None, pad_edge=False, show_header=False)
    for line in lines:
        again = f" ({line.restarts}×)" if line.restarts else ""
        phase = Text(line.phase + again, style=_STYLES[line.phase])
        table.add_row(Text(line.part, style="bold"), phase, Text(safe(line.status)))
    return table


def register(app: typer.Typer) -> None:
    """Add the command to the program."""
    shown = examples("holdfast up", "holdfast up --config holdfast.yaml --port 9000", "holdfast up --no-http")
    app.command(epilog=shown)(up)
