"""`holdfast up`: everything with one command, one status line per part."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn
from urllib.parse import urlsplit

import typer

from holdfast.cli import logs
from holdfast.cli.board import at_terminal, board, follow
from holdfast.cli.options import ConfigFile, Json, LogFormat, Urls, examples, flat
from holdfast.cli.output import say
from holdfast.wiring import connect, home

if TYPE_CHECKING:  # the web framework takes longer to import than most commands to run
    from holdfast.bus.client import Bus
    from holdfast.config.config import Config
    from holdfast.server.supervisor import Part, Supervisor
    from holdfast.server.system import Choice

Host = Annotated[str | None, typer.Option(help="Address of the HTTP server.  [default: 127.0.0.1]")]
Port = Annotated[int | None, typer.Option(help="Its port; 0 takes a free one.  [default: 8420]")]
Logs = Annotated[
    Path | None,
    typer.Option(
        "--log-folder",
        metavar="FOLDER",
        help="Write logs here. Default: .holdfast/logs at a terminal, else stderr.",
    ),
]
NoHttp = Annotated[bool, typer.Option("--no-http", help="Serve no HTTP.")]
NoSweeper = Annotated[bool, typer.Option("--no-sweeper", help="Do not sweep.")]
NoArchiver = Annotated[bool, typer.Option("--no-archiver", help="Do not archive.")]
NoIngest = Annotated[bool, typer.Option("--no-ingest", help="Do not fill the warehouse.")]
Demo = Annotated[bool, typer.Option("--demo", help="Add a small shop that publishes, works and fails.")]


def up(
    demo: Demo = False,
    host: Host = None,
    port: Port = None,
    no_http: NoHttp = False,
    no_sweeper: NoSweeper = False,
    no_archiver: NoArchiver = False,
    no_ingest: NoIngest = False,
    urls: Urls = None,
    config: ConfigFile = None,
    folder: Logs = None,
    log_format: LogFormat = None,
    as_json: Json = False,
) -> None:
    """Run the whole system with one command.

    That is the lifecycle and the sweeper of every store, the control room, REST, health and metrics over
    HTTP, and the archiver and the ingest, each a Spark driver of its own. A part that dies is restarted.
    SIGTERM or Ctrl-C drains and ends with 0, or with 1 if a part did not stop as it should; a second one
    aborts. Status lines go to stdout.

    Without a store and a configuration everything is under .holdfast/: a private PostgreSQL, all channels
    archived into cold/ and ingested through wal/ into warehouse.duckdb. On a store that is named, the
    archiver and the ingest start where the configuration has streams for them.

    Nobody gets in without a token. Where the store never had one, it is made for an admin and kept in
    .holdfast/token. A link that signs a browser in, once within ten minutes, goes to stderr.

    With --demo a small shop publishes a few events a second, and its handlers fail now and then. Without a
    configuration it has the private store, unless --url names another one, and the pipeline that
    .holdfast/demo.yaml says.
    """
    from holdfast.cli.demo.traffic import TrafficPart, demo_config
    from holdfast.config.load import FILE, load
    from holdfast.server.system import Choice

    file = demo_config(config) if demo else config
    # Not the store of the environment: a demo has to be asked before it writes to somebody's store.
    private: list[str] | None = [] if file != config else None
    form = None if log_format is None else log_format.value
    given = None if folder is None else str(folder)
    flags = {
        "url": flat(urls) or private,
        "server.host": host,
        "server.port": port,
        "log_format": form,
        "log_folder": given,
    }
    effective = load(file, flags=flags).config
    if file != config or not (config or os.environ.get(FILE)):  # nobody has asked for a pipeline
        effective = runnable(effective)
    choice = Choice(
        http=not no_http,
        sweeper=not no_sweeper,
        archiver=not no_archiver,
        ingest=not no_ingest,
        file=file,
        logs=log_folder(effective, as_json),
    )
    asyncio.run(supervise("up", effective, choice, as_json, TrafficPart if demo else None))


def runnable(config: Config) -> Config:
    """As much of the defaults as can run here: all of them, or those that do without Spark."""
    from holdfast.config.embedded import has_spark
    from holdfast.config.ingest import Ingest
    from holdfast.config.sections import Archiver

    if has_spark() or (config.url and not config.ingest.channels):
        return config
    say("the archiver and the ingest need Spark: pip install 'holdfast[spark]'; the rest runs without")
    return config.model_copy(update={"archiver": Archiver(), "ingest": Ingest()})


def log_folder(config: Config, as_json: bool) -> Path | None:
    """Where logs go; None means stderr."""
    if config.log_folder is not None:
        return Path(config.log_folder)
    return home() / "logs" if at_terminal(as_json) else None


async def supervise(
    command: str, config: Config, choice: Choice, as_json: bool, more: Callable[[Bus], Part] | None = None
) -> None:
    """Run the chosen parts until a signal; end the process with 1 if one did not stop as it should."""
    from holdfast.cli.first import reachable, welcome
    from holdfast.cli.ledgers import ledgers
    from holdfast.server.system import assemble

    file = None if choice.logs is None else choice.logs / f"{command}.log"
    async with connect(config=config) as bus:
        urls = [partition.backend.url for partition in bus.partitions.all]
        try:
            with ledgers(config, choice.file, urls) as books:
                system = assemble(bus, config, choice, ledgers=books)
                if more is not None:
                    system.add(more(bus))
                logs.configure(config.log_format, as_json=as_json, file=file)
                if command == "up" and choice.http and not config.server.open:
                    await welcome(bus, config, _address(system))
                with reachable(config, _address(system)) if choice.http else nullcontext():
                    unclean = await _supervise(system, choice.logs, as_json)
        except asyncio.CancelledError:
            _abort("aborted")
        if unclean:
            _abort(f"did not stop as it should: {', '.join(unclean)}")


def _address(system: Supervisor) -> str:
    """Where a browser on this machine reaches the HTTP part; its port may be any free one."""
    from holdfast.server.auth.sessions import address_of
    from holdfast.server.http import HttpPart

    [http] = [each.part for each in system.kept if isinstance(each.part, HttpPart)]
    parts = urlsplit(http.url)
    return address_of(parts.hostname or "", parts.port or 0)


async def _supervise(supervisor: Supervisor, folder: Path | None, as_json: bool) -> list[str]:
    from holdfast.bus.signals import stop_on_signal
    from holdfast.model.garbage import spared

    with spared(), stop_on_signal() as stop, board(folder, as_json) as show:
        follower = asyncio.create_task(follow(supervisor, show))
        try:
            return await supervisor.run(stop)
        finally:
            follower.cancel()
            await asyncio.gather(follower, return_exceptions=True)


def _abort(message: str) -> NoReturn:
    """End now: what still runs must not hold the process."""
    say(message)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1)


def register(app: typer.Typer) -> None:
    """Add the command to the program."""
    shown = examples(
        "holdfast up",
        "holdfast up --demo",
        "holdfast up --config holdfast.yaml --port 9000",
        "holdfast up --no-http --log-folder /var/log/holdfast",
    )
    app.command(epilog=shown)(up)
